"""The MCP tools of one agent: listed once, in the journal, then called like any other tool."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from capataz.agents.history import clean_json
from capataz.agents.mcp.connection import Connection, http_streams, sandbox_streams
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.catalogue import function_schema
from capataz.agents.tools.errors import ToolError
from capataz.agents.tools.own import capped
from capataz.contracts.canonical import canonical_text
from capataz.contracts.errors import AgentFailed
from capataz.contracts.harness import AgentTask, ToolReply, ToolSpec
from capataz.contracts.sandbox import Mount


@dataclass(frozen=True)
class McpTool:
    """One after the other in call order, like a tool of the program's own."""

    spec: ToolSpec
    connection: Connection
    timeout_s: float
    writes: bool = False
    alone: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        return function_schema(self.spec.name, self.spec.description, self.spec.parameters)

    async def call(self, bench: Bench, arguments: dict[str, Any]) -> ToolReply:
        """Raises ``ToolError`` for what the server refuses, and for a server that is gone."""
        client = await self.connection.client()
        try:
            result = await self.connection.call(client.call_tool(self.spec.name, clean_json(arguments)), self.timeout_s)
        except ToolError:
            raise
        except Exception as error:             # the protocol's own errors have no common class
            raise ToolError(f"{self.spec.name}: {error}") from None
        text = _text(result)
        if result.is_error:
            raise ToolError(f"{self.spec.name}: {text}")
        return ToolReply(content=capped(text), summary=text[:200])


class Servers:
    """``async with Servers(task, bench) as tools``; ``tools`` of ``list`` live as long."""

    def __init__(self, task: AgentTask, bench: Bench) -> None:
        self._task = task
        self._bench = bench
        self._folder = Path()
        self._open: list[Connection] = []

    async def __aenter__(self) -> list[McpTool]:
        if not self._task.mcp:
            return []
        self._folder = Path(tempfile.mkdtemp(prefix="cpz-"))
        numbers = random.Random(f"mcp {self._task.run_id}/{self._task.key}").sample(range(20_000, 60_000), len(self._task.mcp))
        for number, server in zip(numbers, self._task.mcp, strict=True):
            if server["command"] is not None:  # the sandbox is told at its start where connections may lead
                self._bench.forwards[number] = self._folder / f"{number}.sock"
                self._bench.read_only += tuple(Mount(Path(place), place) for place in server["read_only"])
        found: list[McpTool] = []
        for place, (number, server) in enumerate(zip(numbers, self._task.mcp, strict=True)):
            found += await self._tools(place, server, self._connection(number, server))
        return found

    async def __aexit__(self, *_: Any) -> None:
        for connection in self._open:
            await connection.close()
        if self._task.mcp:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _connection(self, number: int, server: Mapping[str, Any]) -> Connection:
        if server["url"] is not None:
            streams: Any = partial(http_streams, server["url"], server["token_env"])
        else:
            streams = partial(sandbox_streams, self._folder / f"{number}.sock", number, server["command"], server["env"], self._bench.session)
        connection = Connection(server["name"], streams)
        self._open.append(connection)
        return connection

    async def _tools(self, place: int, server: Mapping[str, Any], connection: Connection) -> list[McpTool]:
        """What the server said it has, when it was first asked: a resumed agent is offered the same. Raises ``AgentFailed``."""

        async def perform() -> ToolReply:
            client = await connection.client()
            listed = await connection.call(client.list_tools(), server["timeout_s"])
            shown = {t.name: {"description": t.description or "", "parameters": t.input_schema} for t in listed.tools if t.name in server["tools"]}
            return ToolReply(content=json.dumps(shown), summary=", ".join(shown))

        try:
            reply = await self._bench.ports.tool_call(
                turn=0, position=-1 - place, name=f"{server['name']}.list_tools", arguments={"tools": server["tools"]}, writes=False, perform=perform
            )
        except ToolError as error:
            raise AgentFailed(f"{self._task.name}: {error}") from None
        known = json.loads(reply.content)
        missing = [name for name in server["tools"] if name not in known]
        if missing:
            raise AgentFailed(f"{self._task.name}: the MCP server {server['name']} has no tool {', '.join(missing)}")
        return [McpTool(ToolSpec(name=name, **known[name]), connection, server["timeout_s"]) for name in server["tools"]]


def _text(result: Any) -> str:
    parts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not parts and result.structured_content is not None:
        return canonical_text(clean_json(result.structured_content))
    return "\n".join(parts)
