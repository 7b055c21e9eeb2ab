"""The MCP server itself: tools and resources over standard input and output, or over HTTP on the loopback."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from capataz.contracts.errors import CapatazError
from capataz.service.mcp.carrier import Carrier
from capataz.service.mcp.tools import Tools
from capataz.wiring.app import App

_INSTRUCTIONS = (
    "Capataz runs durable programs of coding agents. Write a program, check it, start it, and watch its run; answer its questions, or notify, "
    "cancel and fork it. The resources run://RUN/journal and run://RUN/transcript hold what happened."
)


async def serve(app: App, *, model: str | None = None, trusted: frozenset[str] = frozenset(), http_port: int | None = None) -> None:
    """Serves until the client is gone. ``http_port``: streamable HTTP on 127.0.0.1 instead of standard input and output."""
    carrier = Carrier(app)
    server = build(Tools(app, carrier, model, trusted))
    try:
        if http_port is None:
            await server.run_stdio_async()
        else:
            await server.run_streamable_http_async(host="127.0.0.1", port=http_port)
    finally:
        await carrier.close()


def build(tools: Tools) -> MCPServer:
    server: MCPServer = MCPServer("capataz", instructions=_INSTRUCTIONS, log_level="WARNING")
    for function in tools.all():
        server.tool()(_plain_errors(function))

    @server.resource("run://{run_id}/journal", mime_type="application/json", description="The effects of a run, in order.")
    async def journal(run_id: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return json.dumps(await tools.journal(run_id))

    @server.resource("run://{run_id}/transcript", mime_type="application/json", description="What a run's agents were asked, said and did.")
    async def transcript(run_id: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return json.dumps(await tools.transcript(run_id))

    return server


def _plain_errors(function: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Errors reach the model as their one line."""

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await function(*args, **kwargs)
        except CapatazError as error:
            raise ToolError(f"{error.code}: {error}") from error

    return call
