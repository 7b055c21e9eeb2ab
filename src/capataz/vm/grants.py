"""States that an agent may see: what ``reads=``, ``writes=`` and ``owns=`` become on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import UsageError
from capataz.vm.runtime import Runtime
from capataz.vm.states import State

States = Sequence[State[Any]]


@dataclass(frozen=True, slots=True)
class Grants:
    """``reads``: what it may see; ``writes``: edit too; ``owns``: must leave complete. Owning includes writing, writing seeing."""

    reads: tuple[State[Any], ...]
    writes: tuple[State[Any], ...]
    owns: tuple[State[Any], ...]

    @classmethod
    def of(cls, site: str, reads: States | None, writes: States | None, owns: States | None, harness: str | None) -> Grants:
        """Raises ``UsageError`` for what is no state, two states of one name, and a harness without our tools."""
        owned = _distinct(owns or ())
        written = _distinct((*(writes or ()), *owned))
        grants = cls(_distinct((*(reads or ()), *written)), written, owned)
        names = [state.name for state in grants.reads]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"{site}: an agent knows states by name, and two are named {', '.join(twice)}; give one of them another name")
        if grants.reads and harness is not None and harness.startswith("command:"):
            raise UsageError(f"{site}: an agent of harness {harness} has no state tools; use the agno harness for reads=, writes= and owns=")
        return grants

    def input(self) -> dict[str, JsonValue]:
        """What is part of the agent's key."""
        return {"reads": _shown(self.reads), "writes": _shown(self.writes)}

    def args(self, runtime: Runtime) -> list[dict[str, JsonValue]] | None:
        """What the kernel needs: where the states are, what to tell the agent, and a callback that judges edits."""
        if not self.reads:
            return None
        return [
            {
                "name": state.name,
                "reach": state.reach,
                "version": state.version,
                "schema": state.rules.schema(),
                "writes": state in self.writes,
                "owns": state in self.owns,
                "callback": runtime.register_callback(state.rules.answer),
            }
            for state in self.reads
        ]


def _distinct(states: States) -> tuple[State[Any], ...]:
    found: dict[tuple[str, str], State[Any]] = {}
    for state in states:
        if not isinstance(state, State):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"reads=, writes= and owns= take states, made by state(name, Model), not {state!r}")
        found.setdefault((state.reach, state.name), state)
    return tuple(found.values())


def _shown(states: tuple[State[Any], ...]) -> list[dict[str, JsonValue]] | None:
    return [{"name": s.name, "reach": s.reach, "version": s.version, "schema": s.rules.schema()} for s in states] or None
