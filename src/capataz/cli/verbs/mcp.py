"""mcp: Capataz for models, over the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from capataz.cli import bridge
from capataz.cli.verbs.common import examples


def add(app: typer.Typer) -> None:
    app.command(epilog=examples("capataz mcp", "capataz mcp --model openai/gpt-5-mini", "capataz mcp --trust ultracode", "capataz mcp --http 8421"))(mcp)


def mcp(
    model: Annotated[str | None, typer.Option("--model", metavar="ID", help="The model of runs whose caller names none.")] = None,
    trust: Annotated[
        list[str] | None, typer.Option("--trust", metavar="NAME", help="An installed program that may run outside a sandbox; may be repeated.")
    ] = None,
    http: Annotated[
        int | None, typer.Option("--http", metavar="PORT", min=1, max=65535, help="Streamable HTTP at 127.0.0.1:PORT/mcp instead of standard input and output.")
    ] = None,
) -> int:
    """Serve tools and resources to an MCP client: write, check, start, watch, notify, answer, cancel and fork programs and runs."""
    bridge.serve_mcp(model, frozenset(trust or ()), http)
    return 0
