"""``loop``: epochs that are archived, and the promises across crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from capataz.contracts.errors import ProviderUnavailable
from capataz.contracts.journal import RunRecord
from capataz.testing.fake_agents import FakeCall
from capataz.testing.lab import Lab, open_lab
from capataz.vm.ports import Parking

PROGRAMS = Path(__file__).parent / "programs"
DIARY = f"{PROGRAMS / 'loops.py'}:diary"
HURRIED = f"{PROGRAMS / 'loops.py'}:hurried"
NESTED = f"{PROGRAMS / 'loops.py'}:nested"
HEAD = """
import asyncio
from typing import Any
from pydantic import BaseModel
from capataz import *
from capataz.contracts.errors import *
"""


async def answer(call: FakeCall) -> str:
    if call.prompt == "idle":
        await asyncio.Event().wait()
    return f"<{call.prompt}>"


def written(tmp_path: Path, body: str, name: str = "case") -> str:
    file = tmp_path / f"{name}.py"
    file.write_text(HEAD + body)
    return f"{file}:main"


async def play(tmp_path: Path, body: str) -> RunRecord:
    async with open_lab(answer) as lab:
        return await lab.run(written(tmp_path, body))


async def test_a_loop_runs_until_told_and_gives_the_last_carry(tmp_path: Path) -> None:
    run = await play(tmp_path, """
class Count(BaseModel):
    n: int

async def more(c: Count) -> Count:
    return Count(n=c.n + 1)

@program
async def main() -> list[Any]:
    return [await loop(more, Count(n=0), until=lambda c: c.n >= 7), await loop(more, Count(n=0), until=2)]
""")
    assert run.result == [{"n": 7}, {"n": 2}], run.reason


async def test_an_epoch_waits_for_what_it_spawned_and_ends_the_rest(tmp_path: Path) -> None:
    run = await play(tmp_path, """
@program
async def main() -> list[str]:
    log: list[str] = []

    async def idle() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            log.append("task cancelled")
            raise

    async def body(n: int) -> int:
        await spawn("a", prompt="a")
        daemon = await spawn("idler", prompt="idle", daemon=True)
        asyncio.create_task(idle())
        await asyncio.sleep(0)
        return n + 1

    log.append(str(await loop(body, 0, until=2)))
    return log
""")
    assert run.result == ["task cancelled", "task cancelled", "2"], run.reason


async def test_an_unseen_error_of_spawned_work_leaves_the_loop(tmp_path: Path) -> None:
    async with open_lab(lambda call: ProviderUnavailable("down") if call.prompt == "bad" else "x") as lab:
        run = await lab.run(written(tmp_path, """
@program
async def main() -> Any:
    async def body(n: int) -> int:
        if n == 2:
            await spawn("a", prompt="bad")
        return n + 1
    try:
        return await loop(body, 0, until=5)
    except ProviderUnavailable as error:
        return [error.message, await loop(body, 3, until=1)]
"""))
    assert run.result == ["down", 4], run.reason


WRONG = {
    "until=0": "write a function",
    "until=True": "write a function",
    "every='soon'": "",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_arguments_are_named(tmp_path: Path, wrong: str) -> None:
    run = await play(tmp_path, f"""
@program
async def main() -> Any:
    async def body(n: int) -> int:
        return n + 1
    await loop(body, 0, {wrong})
""")
    assert run.state == "failed" and WRONG[wrong] in run.reason["message"], run.reason


async def test_every_sets_the_pace_by_durable_sleep(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        program = written(tmp_path, """
@program
async def main() -> int:
    async def body(n: int) -> int:
        await run("a", prompt=str(n))
        return n + 1
    return await loop(body, 0, every="1h", until=3)
""")
        run = await lab.drive(await lab.start(program), parking=Parking(sleeps_over_s=1))
        assert run.state == "parked" and run.waiting[0]["on"] == "sleep"
        assert run.ready_at is not None and run.started_at is not None and 3600 <= run.ready_at - run.started_at < 3660
        assert len(await lab.journal.archive(run.run_id)) == 3, "the epoch's row, its agent and the agent's call"


# ---- edits ---------------------------------------------------------------------------------------


async def test_an_edited_program_goes_on_with_the_present_epoch(tmp_path: Path) -> None:
    body = """
@program
async def main() -> list[str]:
    async def body(said: list[str]) -> list[str]:
        one = await run("one", prompt=f"one {len(said)}")
        two = await run("two", prompt=f"TWO {one.text}")
        return [*said, two.text]
    return await loop(body, [], until=5)
"""
    bad = {"two <one 3>"}
    async with open_lab(lambda c: ProviderUnavailable("down") if c.prompt in bad else f"<{c.prompt}>") as lab:
        failed = await lab.run(written(tmp_path, body.replace("TWO", "two")))
        assert failed.state == "failed"
        lab.harness.calls.clear()
        written(tmp_path, body.replace("TWO", "new"), "edited")
        run = await lab.resume_with(failed.run_id, tmp_path / "edited.py")
        calls = [prompt for _, prompt, _ in lab.harness.calls]
    assert run.result[:3] == ["<two <one 0>>", "<two <one 1>>", "<two <one 2>>"], run.reason
    assert calls == ["new <one 3>", "one 4", "new <one 4>"]


async def test_a_carry_of_another_shape_is_migrated(tmp_path: Path) -> None:
    old = """
class Log(BaseModel):
    lines: str = ""

def double(n: int) -> str:
    return str(2 * n)

@program
async def main() -> Any:
    async def body(log: Log) -> Log:
        await step("double", double, 1)
        said = await run("a", prompt=f"a {len(log.lines)}")
        return Log(lines=f"{log.lines}x")
    return await loop(body, Log(), until=4)
"""
    new = """
class Log(BaseModel):
    lines: list[str] = []
    more: int = 0

    @migrate
    @classmethod
    def upgrade(cls, value: Any, version: int) -> Any:
        return {"lines": list(value["lines"])}

class Doubled(BaseModel):
    n: int

    @migrate
    @classmethod
    def upgrade(cls, value: Any, version: int) -> Any:
        return {"n": int(value)}

def double(n: int) -> Doubled:
    return Doubled(n=2 * n)

@program
async def main() -> Any:
    async def body(log: Log) -> Log:
        doubled = await step("double", double, 1)
        await run("a", prompt=f"a {len(log.lines)}")
        return Log(lines=[*log.lines, "y"], more=doubled.n)
    return await loop(body, Log(), until=4)
"""
    bad = {"a 2"}
    async with open_lab(lambda c: ProviderUnavailable("down") if c.prompt in bad else "x") as lab:
        failed = await lab.run(written(tmp_path, old))
        assert failed.state == "failed"
        bad.clear()
        written(tmp_path, new, "new")
        run = await lab.resume_with(failed.run_id, tmp_path / "new.py")
    assert run.result == {"lines": ["x", "x", "y", "y"], "more": 2}, run.reason


# ---- crashes -------------------------------------------------------------------------------------


async def sweep(program: str, tmp_path: Path, expected: object, stride: int) -> int:
    """Kills the worker at every ``stride``th fault point, then again in recovery; returns how many crashes there were."""
    crashes, number = 0, 1
    async with open_lab(answer) as lab:
        while True:
            notes = tmp_path / f"notes-{number}"
            run_id = await lab.start(program, str(notes) if program == DIARY else None)
            lab.harness.calls.clear()
            where = await lab.crash(run_id, number)
            if where is None:
                return crashes
            crashes += 1
            in_flight = await calls_in_flight(lab, run_id)
            for again in (2, 6):
                crashes += await lab.crash(run_id, again) is not None
                in_flight += await calls_in_flight(lab, run_id)
            run = await lab.drive(run_id)
            assert run.state == "completed", (number, where, run.reason)
            result = {k: v for k, v in run.result.items() if k != "chance"} if program == DIARY else run.result
            assert result == expected, (number, where)
            await check_nothing_completed_was_repeated(lab, run_id, in_flight, (number, where))
            if program == DIARY:
                assert set(notes.read_text().splitlines()) == {f"{n} <again>" for n in range(4)}, where
            number += stride


async def calls_in_flight(lab: Lab, run_id: str) -> int:
    return sum(row.kind == "model" and row.status == "requested" for row in await lab.journal.effects(run_id))


async def check_nothing_completed_was_repeated(lab: Lab, run_id: str, in_flight: int, where: object) -> None:
    rows = [*await lab.journal.effects(run_id), *await lab.journal.archive(run_id)]
    assert max(Counter(row.key for row in rows).values()) == 1, where
    done = [row for row in rows if row.kind == "model" and row.status == "ok"]
    made = [call for call in lab.harness.calls if call[1] != "idle"]
    assert len(done) <= len(made) <= len(done) + in_flight, (where, len(made), len(done), in_flight)


DAYS = [f"<day {n}>|<help>|<x>|<y>|<inside>" for n in range(4)]
DIARY_RESULT = {"before": "<before>", "after": "<after>", "days": DAYS}
NESTED_RESULT = [9, 10, 11, 5]


async def test_the_loops_end_as_written(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        run = await lab.run(DIARY, str(tmp_path / "notes"))
        assert {k: v for k, v in run.result.items() if k != "chance"} == DIARY_RESULT, run.reason
        assert len(set(run.result["chance"])) == 4, "each epoch has chance of its own"
        nested = await lab.run(NESTED)
    assert nested.result == NESTED_RESULT, nested.reason


async def test_killed_anywhere_a_loop_ends_the_same(tmp_path: Path) -> None:
    assert await sweep(DIARY, tmp_path, DIARY_RESULT, stride=23) > 5


async def test_killed_anywhere_loops_in_loops_end_the_same(tmp_path: Path) -> None:
    assert await sweep(NESTED, tmp_path, NESTED_RESULT, stride=11) > 5


HURRIED_RESULT = {"said": ["<first>", "<second>", "<third>"], "counted": 3, "tally": [0, 1, 2], "last": 2}


async def test_killed_anywhere_loops_that_are_left_and_a_childs_end_the_same(tmp_path: Path) -> None:
    assert await sweep(HURRIED, tmp_path, HURRIED_RESULT, stride=17) > 5


@pytest.mark.sweep
async def test_killed_at_every_point_loops_that_are_left_and_a_childs_end_the_same(tmp_path: Path) -> None:
    assert await sweep(HURRIED, tmp_path, HURRIED_RESULT, stride=1) > 100


async def test_a_drained_loop_goes_on_in_its_epoch(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def slow(call: FakeCall) -> str:
        if call.prompt == "2":
            reached.set()
        await asyncio.sleep(0.01)
        return f"<{call.prompt}>"

    async with open_lab(slow) as lab:
        run_id = await lab.start(written(tmp_path, """
@program
async def main() -> list[str]:
    async def body(said: list[str]) -> list[str]:
        one = await run("one", prompt=f"{len(said)}")
        two = await run("two", prompt=f"again {one.text}")
        return [*said, two.text]
    return await loop(body, [], until=4)
"""))
        worker = lab.worker()
        driving = asyncio.create_task(worker.drive(run_id, parking=Parking()))
        await reached.wait()
        worker.request_drain()
        assert (await driving).state == "parked"
        await worker.close()
        run = await lab.drive(run_id)
        assert run.result == [f"<again <{n}>>" for n in range(4)], run.reason
        assert max(Counter(lab.harness.calls).values()) == 1


@pytest.mark.sweep
async def test_killed_at_every_point_a_loop_ends_the_same(tmp_path: Path) -> None:
    assert await sweep(DIARY, tmp_path, DIARY_RESULT, stride=1) > 100


@pytest.mark.sweep
async def test_killed_at_every_point_loops_in_loops_end_the_same(tmp_path: Path) -> None:
    assert await sweep(NESTED, tmp_path, NESTED_RESULT, stride=1) > 100


# ---- length --------------------------------------------------------------------------------------


async def test_what_a_resume_reads_does_not_grow(tmp_path: Path) -> None:
    program = written(tmp_path, """
@program
async def main(input: int) -> int:
    await run("before", prompt="before")
    async def body(n: int) -> int:
        await checkpoint(f"epoch {n}")
        if n == input:
            await ask("Go on?")
        return n + 1
    return await loop(body, 0)
""")
    async with open_lab(answer) as lab:
        read: dict[int, list[str]] = {}
        for epochs in (10, 500):
            run = await lab.drive(await lab.start(program, epochs))
            assert run.state == "parked", run.reason
            rows = await lab.journal.effects(run.run_id)
            read[epochs] = sorted(row.kind for row in rows)
            assert len(await lab.journal.archive(run.run_id, limit=10_000)) == 2 * epochs
            (present,) = [row for row in rows if row.kind == "epoch"]
            assert (present.ordinal, present.result["carry"]) == (epochs, epochs)
            assert (await lab.drive(run.run_id)).state == "parked", "it resumes in the same epoch"
    assert read[10] == read[500] == ["agent", "ask", "checkpoint", "epoch", "loop", "model"]


async def test_a_plan_enters_the_present_epoch(tmp_path: Path) -> None:
    from capataz.vm.closure import find
    from capataz.vm.plan import make_plan

    body = """
@program
async def main() -> int:
    async def body(n: int) -> int:
        await run("one", prompt=f"one {n}")
        await run("two", prompt=f"TWO {n}")
        return n + 1
    return await loop(body, 0, until=5)
"""
    async with open_lab(lambda c: ProviderUnavailable("down") if c.prompt == "two 3" else "x") as lab:
        failed = await lab.run(written(tmp_path, body.replace("TWO", "two")))
        source = find(written(tmp_path, body.replace("TWO", "new"), "edited"))
        plan = await make_plan(lab.worker()._ports, failed, source.files, ref=source.ref, source_digest=source.digest)
    assert [item["name"] for item in plan["reused"] if item["kind"] == "agent"] == ["one"]
    assert [item["key"].partition("#")[0] for item in plan["run"]] == ["~loop[3]/agent:two"], plan
