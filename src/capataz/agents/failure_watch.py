"""Stuck detection and the count of refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capataz.agents.history import Call
from capataz.agents.prompts import stuck_message
from capataz.contracts.canonical import canonical_text
from capataz.contracts.errors import AgentStuck, ForbiddenAccess, ResourceLimit
from capataz.contracts.harness import ToolReply

WARN_AT = 3
END_AT = 4
REFUSALS = 3


@dataclass(slots=True)
class _Repeat:
    count: int
    turn: int
    tree: str | None                           # the workspace after the last failure


class FailureWatch:
    """Fed with every answered call, in call order."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._repeats: dict[str, _Repeat] = {}
        self._refused = {"path": 0, "resource": 0}

    def saw(self, turn: int, call: Call, reply: ToolReply, before: str | None, after: str | None) -> str | None:
        """A corrective message for the model, at the third identical failure. ``before`` and ``after``: the workspace's tree.

        Raises ``AgentStuck`` at the fourth, ``ForbiddenAccess`` or ``ResourceLimit`` at the third refusal. Files that the
        failing call itself writes are no change "in between", and equal calls of one turn count once: nobody saw the first
        answer when the second was asked.
        """
        self._count_refusal(call, reply)
        if not reply.failed:
            return None
        key = f"{call.name} {call.raw if call.arguments is None else _key(call.arguments)}"
        known = self._repeats.get(key)
        if known is None or known.tree != before:
            self._repeats[key] = _Repeat(1, turn, after)
            return None
        if known.turn != turn:
            known.count += 1
        warn = known.count == WARN_AT and known.turn != turn
        known.turn, known.tree = turn, after
        if known.count >= END_AT:
            raise AgentStuck(
                f"{self._agent} repeated a failing call of {call.name} {known.count} times without changing a file: {reply.summary or reply.content[:200]}",
                tool=call.name,
            )
        return stuck_message(call.name, call.arguments if call.arguments is not None else call.raw) if warn else None

    def _count_refusal(self, call: Call, reply: ToolReply) -> None:
        if reply.refused is None:
            return
        self._refused[reply.refused] += 1
        if self._refused[reply.refused] >= REFUSALS:
            said = reply.summary or reply.content[:200]
            if reply.refused == "path":
                raise ForbiddenAccess(f"{self._agent} was refused {REFUSALS} times, the last by {call.name}: {said}", tool=call.name)
            raise ResourceLimit(f"{self._agent} hit resource limits {REFUSALS} times, the last in {call.name}: {said}", tool=call.name)


def _key(arguments: dict[str, Any]) -> str:
    try:
        return canonical_text(arguments)
    except Exception:
        return repr(arguments)
