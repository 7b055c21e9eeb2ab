"""A small MCP server: on standard input and output, or with a port over HTTP on the loopback."""

import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    log = os.environ.get("CALLS")
    if log:
        with Path(log).open("a") as calls:
            calls.write(f"{a}+{b}\n")
    return str(a + b)


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@server.tool()
def network() -> str:
    """Says whether there is a network."""
    import socket

    return ", ".join(name for _, name in socket.if_nameindex())


if len(sys.argv) > 1:
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
