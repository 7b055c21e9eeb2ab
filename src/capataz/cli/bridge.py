"""The one bridge from the synchronous command line to the asynchronous rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from capataz.cli.app_port import App, Database, Wiring

T = TypeVar("T")


def wiring() -> Wiring:
    """``capataz.wiring.app``, imported when a verb needs it."""
    from capataz.wiring import app

    return cast(Wiring, app)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def with_app(work: Callable[[App], Awaitable[T]]) -> T:
    """Opens an app, does ``work``, closes the app."""

    async def inner() -> T:
        async with wiring().open_app() as app:
            return await work(app)

    return run(inner())


def with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    async def inner() -> T:
        return await work(wiring().open_database())

    return run(inner())


def serve_mcp(model: str | None, trusted: frozenset[str], http_port: int | None) -> None:
    """The MCP server on an app, until its client is gone."""

    async def inner() -> None:
        from capataz.service.mcp.server import serve
        from capataz.wiring.app import open_app

        async with open_app() as app:
            await serve(app, model=model, trusted=trusted, http_port=http_port)

    run(inner())
