"""What a run used, by agent and by program: sums over the calls that were really made, of all generations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from capataz.contracts.journal import EffectRow, Usage
from capataz.vm.keys import agent_name
from capataz.wiring.summary import dollars

_SHOWN = ("input_tokens", "output_tokens", "model_calls", "repeated_model_calls", "tool_calls")
OWN = "the run's own program"


def usage_by(rows: Iterable[EffectRow]) -> dict[str, dict[str, dict[str, Any]]]:
    """``{"agent": {scoped name: usage}, "program": {child's key, or the run's own: usage}}``; rows of every generation."""
    kept = list(rows)
    by_key = {row.key: row for row in kept}
    agents: defaultdict[str, Usage] = defaultdict(Usage)
    programs: defaultdict[str, Usage] = defaultdict(Usage)
    for row in kept:
        if row.reused_from is not None or row.usage == Usage():
            continue
        agent = row if row.kind == "agent" else by_key.get(row.parent or "")
        if agent is not None and agent.kind == "agent":
            name = agent_name(agent.scope, agent.name)
            agents[name] = agents[name] + row.usage
        program = _program(row, by_key)
        programs[program] = programs[program] + row.usage
    return {"agent": _told(agents), "program": _told(programs)}


def _program(row: EffectRow, by_key: dict[str, EffectRow]) -> str:
    """The nearest child program above, by its key."""
    parent = row.parent
    while parent is not None:
        above = by_key.get(parent)
        if above is None:
            break
        if above.kind == "child":
            return above.key
        parent = above.parent
    return OWN


def _told(sums: dict[str, Usage]) -> dict[str, dict[str, Any]]:
    return {
        name: {"usd": dollars(usage.usd), **{field: getattr(usage, field) for field in _SHOWN}, "sandbox_s": round(usage.sandbox_s, 3)}
        for name, usage in sorted(sums.items())
    }
