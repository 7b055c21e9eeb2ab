"""A connection to one MCP server, opened at the first call: over HTTP from the worker, or by a pipe into the agent's sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client  # pyright: ignore[reportPrivateImportUsage]
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from capataz.agents.tools.errors import ToolError
from capataz.contracts.sandbox import CommandResult, Session

MAX_LINE = 16 << 20
START_S = 30.0
_INSIDE = (
    "import os,socket,sys\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
    "os.dup2(s.fileno(),0)\nos.dup2(s.fileno(),1)\nos.execvp(sys.argv[2],sys.argv[2:])"
)
"""In the sandbox: the server's standard input and output are the one connection that leads out."""

Streams = AbstractAsyncContextManager[tuple[Any, Any]]


class Connection:
    """``client()`` connects once. The protocol's tasks live in a task of their own, which ``close`` ends."""

    def __init__(self, name: str, streams: Callable[[], Streams]) -> None:
        self._name = name
        self._streams = streams
        self._serving: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    async def client(self) -> Client:
        """Raises ``ToolError`` for a server that cannot be reached."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        done, _ = await asyncio.wait({self._ready, self._serving}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise ToolError(f"the MCP server {self._name} did not answer within {START_S:g} s")
        if not self._ready.done() or self._serving.done():
            raise ToolError(f"the MCP server {self._name} cannot be reached: {_reason(self._serving)}")
        return self._ready.result()

    async def _serve(self) -> None:
        async with Client(self._streams()) as client:  # pyright: ignore[reportArgumentType]
            self._ready.set_result(client)
            await self._over.wait()

    async def call(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """Awaits an answer; a server that ends meanwhile is a ``ToolError`` too."""
        assert self._serving is not None
        asked = asyncio.ensure_future(work)
        try:
            await asyncio.wait({asked, self._serving}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if self._serving.done():
                raise ToolError(f"the MCP server {self._name} ended: {_reason(self._serving)}")
            raise ToolError(f"the MCP server {self._name} did not answer within {timeout_s:g} s")
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async def close(self) -> None:
        self._over.set()
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=2)
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)


def _reason(task: asyncio.Task[None]) -> str:
    error: BaseException | None = task.exception() if task.done() and not task.cancelled() else None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if error is not None else "it is gone"


@asynccontextmanager
async def http_streams(url: str, token_env: str | None) -> AsyncIterator[tuple[Any, Any]]:
    headers = {}
    if token_env:
        token = os.environ.get(token_env)
        if not token:
            raise ToolError(f"{token_env} is not set where the worker runs")
        headers = {"Authorization": f"Bearer {token}"}
    async with create_mcp_http_client(headers=headers) as http, streamable_http_client(url, http_client=http) as streams:
        yield streams[0], streams[1]


@asynccontextmanager
async def sandbox_streams(
    socket: Path, port: int, command: list[str], env: dict[str, str], session: Callable[[], Coroutine[Any, Any, Session]]
) -> AsyncIterator[tuple[Any, Any]]:
    """Starts the server in the sandbox and joins its standard input and output to a unix socket of ours."""
    arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue(1)
    listening = await asyncio.start_unix_server(lambda reader, writer: arrived.put_nowait((reader, writer)), str(socket), limit=MAX_LINE)
    inside = await session()
    server = asyncio.ensure_future(inside.run((_python(), "-c", _INSIDE, str(port), *command), env=env, timeout_s=86_400))
    waiting = asyncio.ensure_future(arrived.get())
    writer: asyncio.StreamWriter | None = None
    try:
        await asyncio.wait({server, waiting}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ToolError(await _last_words(server) or "it did not start")
        reader, writer = waiting.result()
        try:
            async with _joined(reader, writer) as streams:
                yield streams
        except Exception as error:
            said = await _last_words(server)
            raise ToolError(said or str(error)) from error
    finally:
        for task in (waiting, server):
            task.cancel()
        await asyncio.gather(waiting, server, return_exceptions=True)
        if writer is not None:
            writer.close()
        listening.close()


async def _last_words(server: asyncio.Future[CommandResult]) -> str:
    """What a server that ended said on standard error; "" while it lives."""
    await asyncio.wait({server}, timeout=1)
    if not server.done() or server.exception() is not None:
        return ""
    return server.result().stderr.decode("utf-8", "replace").strip()[-300:]


def _python() -> str:
    """The interpreter that sandboxes have, by its real name."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@asynccontextmanager
async def _joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[tuple[Any, Any]]:
    """Lines of JSON, as the protocol's streams of messages."""
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_client:
            try:
                while line := await reader.readline():
                    await to_client.send(_message(line))
            except (ConnectionError, ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def write() -> None:
        async with from_client:
            async for message in from_client:
                writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield from_server, to_server
        finally:
            group.cancel_scope.cancel()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error
