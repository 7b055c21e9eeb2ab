"""State (VM.md, "State"): compare-and-swap, rules, subscriptions, reach, and the promises across crashes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capataz.contracts.journal import RunRecord, StateAddress
from capataz.testing.fake_agents import FakeCall
from capataz.testing.lab import Lab, open_lab

PROGRAMS = Path(__file__).parent / "programs"
SHARING = f"{PROGRAMS / 'states.py'}:sharing"
HEAD = """
import asyncio
from typing import Any, ClassVar, Literal
from pydantic import BaseModel, Field
from capataz import *
from capataz.contracts.errors import *

class Ticket(BaseModel):
    status: Literal["open", "doing", "done"] = "open"
    hours: int = Field(default=0, ge=0)
    transitions: ClassVar[Transitions] = {"status": {"open": ["doing"], "doing": ["open", "done"]}}

ticket = state("ticket", Ticket)
"""


def answer(call: FakeCall) -> str:
    return f"<{call.prompt}>"


async def play(tmp_path: Path, body: str, *, lab: Lab | None = None, name: str = "case", **options: object) -> RunRecord:
    """Runs a program whose body is given, indented by four."""
    file = tmp_path / f"{name}.py"
    file.write_text(HEAD + body)
    if lab is not None:
        return await lab.run(f"{file}:main", **options)
    async with open_lab(answer) as own:
        return await own.run(f"{file}:main", **options)


async def test_a_state_is_read_written_and_moved(tmp_path: Path) -> None:
    run = await play(tmp_path, """
@program
async def main() -> list[Any]:
    first = await ticket.get()
    await ticket.set(Ticket(hours=2))
    more = await ticket.update(lambda t: Ticket(status=t.status, hours=t.hours + 1))
    moved = await ticket.transition("status", "open", "doing")
    return [first, more, moved, await state("ticket", Ticket).get()]
""")
    assert run.state == "completed", run.reason
    assert [(t["status"], t["hours"]) for t in run.result] == [("open", 0), ("open", 3), ("doing", 3), ("doing", 3)]


ILLEGAL = {
    "a transition that is not declared": 'await ticket.transition("status", "open", "done")',
    "a transition from where it is not": 'await ticket.transition("status", "doing", "done")',
    "a transition of no field": 'await ticket.transition("stat", "open", "doing")',
    "a jump by set": 'await ticket.set(Ticket(status="done"))',
    "a jump by update": "await ticket.update(lambda t: t.model_copy(update={'status': 'done'}))",
    "a value that does not validate": "await ticket.update(lambda t: t.model_copy(update={'hours': -1}))",
    "another type": "await ticket.set(3)",
    "nothing returned": "await ticket.update(lambda t: None)",
    "what has no JSON form": "await ticket.set(object())",
}


@pytest.mark.parametrize("wrong", ILLEGAL)
async def test_an_illegal_edit_stores_nothing(tmp_path: Path, wrong: str) -> None:
    run = await play(tmp_path, f"""
@program
async def main() -> Any:
    await ticket.set(Ticket(hours=5))
    try:
        {ILLEGAL[wrong]}
    except IllegalStateEdit as error:
        return [error.message, await ticket.get()]
    return "stored"
""")
    assert run.state == "completed", run.reason
    message, value = run.result
    assert message and value == {"status": "open", "hours": 5}, message


async def test_updates_at_once_lose_nothing(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        run = await play(tmp_path, """
@program
async def main() -> int:
    async def add(n: int) -> None:
        await ticket.update(lambda t: t.model_copy(update={"hours": t.hours + n}))
    await fan_out(list(range(30)), add)
    return (await ticket.get()).hours
""", lab=lab)
        assert run.result == sum(range(30)), run.reason
        history = await lab.journal.state_history(StateAddress(reach="run", owner=run.run_id, name="ticket"))
        events = [e.data for e in await lab.journal.events(run.run_id) if e.type == "state.changed"]
    assert [record.version for record in history] == list(range(1, 31))
    assert events == [{"state": "ticket", "version": version} for version in range(1, 31)]


async def test_changes_come_in_order_and_until_sees_each(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        run = await lab.run(SHARING, "n")
    assert run.state == "completed", run.reason
    assert run.result == {
        "notes": ["<n0>", "<n1>", "<n2>"], "enough": 3, "total": 7, "seen": [100, 200, 300, 307, 307, 307], "phase": "closed",
    }  # fmt: skip


WAITER = """
shared = state("shared", Ticket, reach="project")

@program
async def main() -> int:
    return (await shared.until(lambda t: t.hours >= 3)).hours
"""
WRITER = """
shared = state("shared", Ticket, reach="project")

@program
async def main() -> int:
    await shared.update(lambda t: t.model_copy(update={"hours": t.hours + 1}))
    return (await shared.get()).hours
"""


async def test_a_project_state_outlives_runs_and_wakes_parked_ones(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        waiting = await play(tmp_path, WAITER, lab=lab, name="waiter", project="p")
        assert waiting.state == "parked" and waiting.waiting[0]["on"] == "state" and waiting.ready_at is None
        for hours in (1, 2):
            assert (await play(tmp_path, WRITER, lab=lab, name="writer", project="p")).result == hours
            parked = await lab.journal.get_run(waiting.run_id)
            assert parked.ready_at is not None, "each change wakes it"
            assert (await lab.drive(waiting.run_id)).state == "parked"
        assert (await play(tmp_path, WRITER, lab=lab, name="other", project="q")).result == 1, "another project, another state"
        assert (await lab.journal.get_run(waiting.run_id)).ready_at is None
        await play(tmp_path, WRITER, lab=lab, name="writer", project="p")
        assert (await lab.drive(waiting.run_id)).result == 3


async def test_a_state_without_value_says_so(tmp_path: Path) -> None:
    run = await play(tmp_path, """
class Bare(BaseModel):
    n: int

@program
async def main() -> Any:
    bare = state("bare", Bare)
    try:
        await bare.get()
    except NotFound as error:
        await bare.set(Bare(n=1))
        return [error.message, (await bare.get()).n]
""")
    assert run.result == ["state bare has no value yet, and Bare cannot be made without one; set() it first", 1], run.reason


async def test_values_of_another_version_are_migrated(tmp_path: Path) -> None:
    old = """
class Note(BaseModel):
    text: str

@program
async def main() -> None:
    await state("note", Note, reach="project").set(Note(text="a,b"))
"""
    new = """
class Note(BaseModel):
    parts: list[str] = []
    {method}

note = state("note", Note, reach="project", version=2)

@program
async def main() -> Any:
    value = await note.get()
    await note.update(lambda n: Note(parts=[*n.parts, "c"]))
    return [value, await note.get()]
"""
    method = """
    @migrate
    @classmethod
    def upgrade(cls, value: Any, version: int) -> Any:
        assert version == 1
        return {"parts": value["text"].split(",")}
"""
    async with open_lab(answer) as lab:
        await play(tmp_path, old, lab=lab, name="old")
        without = await play(tmp_path, new.replace("{method}", ""), lab=lab, name="without")
        assert without.state == "failed" and "version 1" in without.reason["message"] and "@migrate" in without.reason["message"]
        run = await play(tmp_path, new.replace("{method}", method), lab=lab, name="new")
    assert run.result == [{"parts": ["a", "b"]}, {"parts": ["a", "b", "c"]}], run.reason


async def test_a_wait_that_is_cancelled_leaves_the_state_alone(tmp_path: Path) -> None:
    run = await play(tmp_path, """
@program
async def main() -> str:
    try:
        async with asyncio.timeout(0.05):
            await ticket.until(lambda t: t.hours > 0)
    except TimeoutError:
        return "over"
""")
    assert run.result == "over", run.reason


# ---- crashes -------------------------------------------------------------------------------------


async def sweep(stride: int, start: int = 1) -> int:
    """Kills the worker at every ``stride``th fault point, then again in recovery; returns how many crashes there were."""
    crashes, number = 0, start
    async with open_lab(answer) as lab:
        while True:
            run_id = await lab.start(SHARING, "n")
            where = await lab.crash(run_id, number)
            if where is None:
                return crashes
            crashes += 1
            for again in (2, 5):
                crashes += await lab.crash(run_id, again) is not None
            run = await lab.drive(run_id)
            assert run.state == "completed", (number, where, run.reason)
            await check(lab, run, (number, where))
            number += stride


async def check(lab: Lab, run: RunRecord, where: object) -> None:
    """Each write took effect once and was told once, and every subscriber saw every version."""
    assert {k: v for k, v in run.result.items() if k != "seen"} == {
        "notes": ["<n0>", "<n1>", "<n2>"], "enough": 3, "total": 7, "phase": "closed",
    }, where  # fmt: skip
    assert run.result["seen"] == [100, 200, 300, 307, 307, 307], where
    history = await lab.journal.state_history(StateAddress(reach="run", owner=run.run_id, name="board"))
    assert [record.version for record in history] == [1, 2, 3, 4, 5, 6], where
    assert len({record.effect for record in history}) == 6, where
    told = [e.data["version"] for e in await lab.journal.events(run.run_id) if e.type == "state.changed"]
    assert told == [1, 2, 3, 4, 5, 6], where


async def test_killed_anywhere_each_write_happens_once() -> None:
    assert await sweep(stride=7) > 10


@pytest.mark.sweep
async def test_killed_at_every_point_each_write_happens_once() -> None:
    assert await sweep(stride=1) > 100


async def test_a_write_between_read_and_write_is_not_lost(tmp_path: Path) -> None:
    """Two runs of one project update the same state at once, in turn killed."""
    file = tmp_path / "both.py"
    file.write_text(HEAD + """
shared = state("shared", Ticket, reach="project")

@program
async def main() -> None:
    for _ in range(5):
        await shared.update(lambda t: t.model_copy(update={"hours": t.hours + 1}))
""")
    async with open_lab(answer) as lab:
        runs = [await lab.start(f"{file}:main") for _ in range(3)]
        for number in (4, 9, 14):
            await asyncio.gather(*(lab.crash(run_id, number) for run_id in runs))
        ended = await asyncio.gather(*(lab.drive(run_id) for run_id in runs))
        assert [run.state for run in ended] == ["completed"] * 3, [run.reason for run in ended]
        at = StateAddress(reach="project", owner="local:default", name="shared")
        history = await lab.journal.state_history(at)
    assert [record.value["hours"] for record in history] == list(range(1, 16))
