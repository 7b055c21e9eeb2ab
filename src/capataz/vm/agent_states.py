"""States on behalf of an agent: what its ``state_read`` and ``state_edit`` do, and the gate of those that it owns.

The rules are the program's: its model validates, moves and completes, by a callback into its process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import IllegalStateEdit, NotFound
from capataz.contracts.harness import StateGrant, StateView
from capataz.contracts.journal import StateAddress

if TYPE_CHECKING:
    from capataz.vm.effect import Effect
    from capataz.vm.run import Run

T = TypeVar("T")
present_call: ContextVar[str] = ContextVar("capataz_tool_call")
"""Key of the tool call under way: an edit carries it, so that a repeated call finds its own."""

Event = tuple[str, str | None, dict[str, Any]]


class AgentStates:
    def __init__(self, run: Run, effect: Effect) -> None:
        self._run = run
        self._effect = effect
        self._granted: dict[str, dict[str, Any]] = {given["name"]: given for given in effect.args.get("states") or ()}
        self._events: dict[str, list[Event]] = {}

    async def during(self, call: str, perform: Callable[[], Awaitable[T]]) -> T:
        """Performs a tool call under its key."""
        token = present_call.set(call)
        try:
            return await perform()
        finally:
            present_call.reset(token)

    def events(self, call: str) -> tuple[Event, ...]:
        """What a tool call changed, to be journaled with its end."""
        return tuple(self._events.pop(call, ()))

    async def read(self, name: str) -> StateView:
        given, at = self._find(name)
        record = await self._run.states.read(at)
        return StateView(version=record["version"], value=(await self._ask(given, "read", record))["value"])

    async def edit(self, name: str, patch: JsonValue, version: int) -> StateView:
        """Raises ``IllegalStateEdit`` for an edit that the rules refuse or that is based on another version."""
        given, at = self._find(name)
        if not given["writes"]:
            raise IllegalStateEdit(f"state {name} may only be read by this agent")
        call = present_call.get()
        if not await self._run.states.written_by(at, version, call):
            await self._write(given, at, patch, version, call)
        self._events.setdefault(call, []).append(("state.changed", self._effect.key, {"state": name, "version": version + 1}))
        return await self.read(name)

    async def _write(self, given: dict[str, Any], at: StateAddress, patch: JsonValue, version: int, call: str) -> None:
        record = await self._run.states.read(at)
        if record["version"] != version:
            raise _outdated(at.name, record["version"], version)
        answer = await self._ask(given, "edit", record, patch=patch)
        if "refused" in answer:
            raise IllegalStateEdit(answer["refused"])
        if await self._run.states.write(at, version, answer["value"], given["version"], call) is None:
            raise _outdated(at.name, version + 1, version)

    async def unfinished(self) -> str | None:
        """Why the agent may not end yet; None: every state that it owns validates and is complete."""
        for given in self._granted.values():
            if given["owns"]:
                record = await self._run.states.read(self._run.states.at(given["reach"], given["name"]))
                said = (await self._ask(given, "complete", record))["incomplete"]
                if said is not None:
                    return f"{said}; mend it with state_edit, then end"
        return None

    @property
    def owns(self) -> bool:
        return any(given["owns"] for given in self._granted.values())

    def _find(self, name: str) -> tuple[dict[str, Any], StateAddress]:
        given = self._granted.get(name)
        if given is None:
            raise NotFound(f"there is no state {name}; you have {', '.join(self._granted) or 'none'}")
        return given, self._run.states.at(given["reach"], name)

    async def _ask(self, given: dict[str, Any], op: str, record: JsonValue, **more: JsonValue) -> Any:
        return await self._effect.instance.call(given["callback"], [{"op": op, "record": record, **more}])


def _outdated(name: str, present: int, given: int) -> IllegalStateEdit:
    return IllegalStateEdit(f"state {name} is at version {present} or later, not {given}: read it again, then edit what it says now")


def granted_states(effect: Effect) -> tuple[StateGrant, ...]:
    """What the harness tells the agent of its states."""
    return tuple(
        StateGrant(name=given["name"], schema=given["schema"], writes=given["writes"], owns=given["owns"])
        for given in effect.args.get("states") or ()
    )


def granted_tools(effect: Effect) -> tuple[str, ...]:
    """Tools that come with states."""
    states = effect.args.get("states") or ()
    return (("state_read",) if states else ()) + (("state_edit",) if any(given["writes"] for given in states) else ())
