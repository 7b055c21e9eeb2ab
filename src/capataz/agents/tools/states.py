"""``state_read`` and ``state_edit``: the states that the program gave to its agent."""

from __future__ import annotations

from typing import Any

from capataz.agents.history import clean_json, clean_text
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.errors import ToolError
from capataz.contracts.canonical import canonical_text
from capataz.contracts.errors import IllegalStateEdit
from capataz.contracts.harness import StateView, ToolReply


async def state_read(bench: Bench, *, name: str) -> ToolReply:
    return _shown(name, await bench.ports.state_read(name))


async def state_edit(bench: Bench, *, name: str, patch: dict[str, Any], version: int) -> ToolReply:
    try:
        return _shown(name, await bench.ports.state_edit(name, patch=clean_json(patch), version=version))
    except IllegalStateEdit as error:
        raise ToolError(f"{error.message}; nothing was stored") from None


def _shown(name: str, view: StateView) -> ToolReply:
    return ToolReply(
        content=canonical_text({"version": view.version, "value": clean_json(view.value)}), summary=clean_text(f"{name} version {view.version}")
    )
