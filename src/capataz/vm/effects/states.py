"""State: reads, compare-and-swap writes and waits, for programs and on behalf of agents."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from capataz.contracts.canonical import JsonValue
from capataz.contracts.journal import RunRecord, StateAddress, StateRecord, StateWait, StateWrite
from capataz.vm.committer import Part
from capataz.vm.effect import Completion, Done, Effect

if TYPE_CHECKING:
    from capataz.vm.run import Run

AT_ONCE = 100  # versions that one wait hands over


class _Holder(Protocol):
    @property
    def record(self) -> RunRecord: ...


def address(run: _Holder, reach: Any, name: str) -> StateAddress:
    return StateAddress(reach=reach, owner=run.record.run_id if reach == "run" else project(run.record), name=name)


def project(record: RunRecord) -> str:
    """What a state of reach ``project`` belongs to: the named project, else the repository, else the folder of the start."""
    options: dict[str, Any] = record.options or {}
    return f"{record.tenant}:{options.get('project') or record.repository or options.get('cwd') or 'default'}"


class States:
    """A run's way to states. Operations on one state happen in the order in which they were asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._turns: defaultdict[StateAddress, asyncio.Lock] = defaultdict(asyncio.Lock)

    def at(self, reach: str, name: str) -> StateAddress:
        return address(self._run, reach, name)

    async def read(self, at: StateAddress) -> dict[str, JsonValue]:
        async with self._turns[at]:
            record = await self._run.ports.journal.state_get(at)
        return {"version": 0} if record is None else await self._shown(record)

    async def written_by(self, at: StateAddress, expected: int, effect: str) -> bool:
        """Whether this effect's write of version ``expected + 1`` was stored before its worker died."""
        for record in await self._run.ports.journal.state_history(at, after=expected, limit=1):
            return (record.run_id, record.effect) == (self._run.run_id, effect)
        return False

    async def write(self, at: StateAddress, expected: int, value: JsonValue, model_version: int, effect: str) -> int | None:
        """The new version; None: another one is present."""
        run = self._run
        kept = await run.large.outward(value)
        write = StateWrite(at=at, expected=expected, model_version=model_version, value=kept, effect=effect, written_at=run.now())
        run.ports.faults.reach("state.before")
        async with self._turns[at]:
            record = await run.ports.journal.state_put(run.committer.lease, write)
        run.ports.faults.reach("state.after")
        if record is None:
            return None
        run.inbox.nudge()
        return record.version

    async def after(self, at: StateAddress, version: int) -> list[dict[str, JsonValue]]:
        async with self._turns[at]:
            found = await self._run.ports.journal.state_history(at, after=version, limit=AT_ONCE)
        return [await self._shown(record) for record in found]

    async def _shown(self, record: StateRecord) -> dict[str, JsonValue]:
        value = await self._run.large.inward(record.value)
        return {"version": record.version, "model_version": record.model_version, "value": value}


async def perform(run: Run, effect: Effect) -> Done:
    given = effect.input
    at = run.states.at(given["reach"], effect.name)
    match given["op"]:
        case "read":
            return Done(await run.states.read(at))
        case "write":
            version = await run.states.write(at, given["version"], given["value"], given["model_version"], effect.key)
            return Done(None if version is None else {"version": version})
        case _:
            return Done(await _wait(run, effect, at))


async def _wait(run: Run, effect: Effect, at: StateAddress) -> JsonValue:
    version = effect.input["after"]
    wait = {"on": "state", "state": at.name, "reach": at.reach, "owner": at.owner, "version": version, "due": None}
    while True:
        ticked = run.inbox.tick()  # before the look: a change after it is not missed
        found = await run.states.after(at, version)
        if found:
            return found
        with run.waiting_for(wait, effect):
            await ticked.wait()


def waits_of(waiting: list[dict[str, Any]]) -> tuple[StateWait, ...]:
    """What a run that parks waits for, as the journal takes it."""
    return tuple(
        StateWait(at=StateAddress(reach=w["reach"], owner=w["owner"], name=w["state"]), version=w["version"])
        for w in waiting if w["on"] == "state"
    )


def at_completion(run: Run, completion: Completion) -> Part:
    done = completion.done.result
    if completion.effect.input["op"] != "write" or completion.status != "ok" or done is None:
        return Part()
    return Part(events=(("state.changed", completion.effect.key, {"state": completion.effect.name, "version": done["version"]}),))
