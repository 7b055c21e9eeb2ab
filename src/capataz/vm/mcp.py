"""``mcp_server``: a server of the Model Context Protocol, and which of its tools an agent gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import UsageError
from capataz.vm.limits import Duration, duration
from capataz.vm.runtime import Runtime
from capataz.vm.sites import call_site
from capataz.vm.tools import Approval, asks


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Made by ``mcp_server``."""

    name: str
    told: dict[str, JsonValue] = field(hash=False)
    approval: Approval
    idempotent: bool
    timeout_s: float

    @property
    def tools(self) -> list[str]:
        return list(self.told["tools"])


def mcp_server(
    name: str,
    *,
    tools: Sequence[str],
    command: Sequence[str] | None = None,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    read_only: Sequence[str] = (),
    token_env: str | None = None,
    approval: Approval = "never",
    idempotent: bool = True,
    timeout: Duration = 60,
) -> McpServer:
    """A server for ``run(..., mcp=[server])``, and the names of the tools that it grants.

    ``command`` runs in the agent's sandbox, without network, and speaks on standard input and output; ``env`` and ``read_only``
    (folders of the host, seen at the same place) are for it. ``url`` is reached by the worker over streamable HTTP;
    ``token_env`` names a variable of the worker that holds a bearer token. ``approval`` and ``idempotent`` as for ``tool``.
    """
    site = call_site(2)
    if (command is None) == (url is None):
        raise UsageError(f"{site}: mcp_server({name!r}) needs a command or a url, and not both")
    if isinstance(tools, str) or not tools:
        raise UsageError(f"{site}: mcp_server({name!r}): name the tools that an agent may use: tools=[...]")
    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(f"{site}: mcp_server({name!r}): {url!r} is no http address")
    seconds = duration(timeout)
    assert seconds is not None
    told: dict[str, JsonValue] = {
        "name": name, "tools": list(tools), "command": None if command is None else list(command), "url": url, "env": dict(env or {}),
        "read_only": list(read_only), "token_env": token_env,
    }
    return McpServer(name=name, told=told, approval=approval, idempotent=idempotent, timeout_s=seconds)


class McpGrants:
    """The servers of one agent."""

    def __init__(self, site: str, servers: Sequence[McpServer] | None, harness: str | None) -> None:
        self._servers = list(servers or ())
        for server in self._servers:
            if not isinstance(server, McpServer):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{site}: mcp= takes servers, made by mcp_server(name, ...), not {server!r}")
        names = [tool for server in self._servers for tool in server.tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"{site}: two tools of the MCP servers are named {', '.join(twice)}; grant one of them")
        if self._servers and harness is not None and harness != "agno":
            raise UsageError(f"{site}: an agent of harness {harness} has no MCP tools of ours; leave mcp= out")

    def input(self) -> dict[str, JsonValue]:
        """What is part of the agent's key."""
        return {"mcp": [server.told for server in self._servers]} if self._servers else {}

    def args(self, runtime: Runtime) -> list[JsonValue]:
        """What the kernel does before a call."""
        return [
            {"name": tool, "gate": _gate(server, runtime), "idempotent": server.idempotent, "timeout_s": server.timeout_s}
            for server in self._servers for tool in server.tools
        ]  # fmt: skip


def _gate(server: McpServer, runtime: Runtime) -> int | None:
    if server.approval == "never":
        return None
    return runtime.register_callback(lambda arguments: asks(server.approval, arguments, f"MCP server {server.name}"))
