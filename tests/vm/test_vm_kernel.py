"""The kernel's promises (VM.md), with fake agents and real program processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capataz.contracts.errors import ProviderUnavailable
from capataz.contracts.journal import RunRecord
from capataz.testing.crash_sweep import sweep
from capataz.testing.fake_agents import MORE, FakeCall
from capataz.testing.lab import Lab, open_lab
from capataz.vm.ports import Parking

PROGRAMS = Path(__file__).parent / "programs"
MIXTURE = f"{PROGRAMS / 'mixture.py'}:mixture"


async def answer(call: FakeCall) -> str:
    if call.prompt == "slow":
        await asyncio.sleep(0.3)
    return f"<{call.prompt}>"


async def test_a_program_runs_to_its_result(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        run = await lab.run(MIXTURE, str(tmp_path / "notes"))
    assert run.state == "completed", run.reason
    assert run.result["chains"] == [f"<two <one {n}>>" for n in range(4)]
    assert run.result["first"] == "<fast>"
    assert run.result["child"] == "<<inner 7>>"
    assert (tmp_path / "notes").read_text() == "hello\nagain\n"


async def test_events_are_numbered_without_gaps(tmp_path: Path) -> None:
    async with open_lab(answer) as lab:
        run = await lab.run(MIXTURE, str(tmp_path / "notes"))
        events = await lab.journal.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[0].type == "run.created" and events[-1].type == "run.ended"


async def swept(tmp_path: Path, stride: int) -> int:
    async def judge(lab: Lab, run: RunRecord, given: object) -> list[str]:
        good = run.result["chains"] == [f"<two <one {n}>>" for n in range(4)] and run.result["together"][::2] == ["<1>", "<2>"]
        return [] if good else [f"result {run.result}"]

    report = await sweep(MIXTURE, lambda case: str(tmp_path / f"notes-{case}"), respond=answer, stride=stride, judge=judge)
    assert not report.violations, report.violations
    return report.crashes


async def test_killed_anywhere_it_ends_the_same(tmp_path: Path) -> None:
    assert await swept(tmp_path, stride=9) > 10


@pytest.mark.sweep
async def test_killed_at_every_point_it_ends_the_same(tmp_path: Path) -> None:
    assert await swept(tmp_path, stride=1) > 100


async def test_recorded_order_decides_again(tmp_path: Path) -> None:
    """A race that was decided stays decided, though the other would win now."""
    delays = {"fast": 0.0, "slow": 0.2}

    async def racing(call: FakeCall) -> str:
        await asyncio.sleep(delays.get(call.prompt, 0))
        return call.prompt

    async with open_lab(racing) as lab:
        run_id = await lab.start(MIXTURE, str(tmp_path / "notes"))
        for number in range(10, 400, 5):
            where = await lab.crash(run_id, number)
            decided = [r for r in await lab.journal.effects(run_id) if r.kind == "checkpoint" and r.status == "ok"]
            if decided or where is None:
                break
        delays.update(fast=0.2, slow=0.0)
        run = await lab.drive(run_id)
    assert decided and run.result["first"] == "fast"


# ---- edits ---------------------------------------------------------------------------------------

CHAINS = '''
from capataz import fan_out, program, run

@program
async def chains(input: int) -> list[str]:
    async def one(n: int) -> str:
        first = await run("first", prompt=f"first {n}")
        {between}
        second = await run("second", prompt={second})
        return second.text
    return await fan_out(list(range(input)), one)
'''
EDITS = {
    "none": ({}, 0),
    "insert": ({"between": 'await run("new", prompt=f"new {n}")'}, 12),
    "second": ({"second": 'f"changed {first.text}"'}, 12),
    "unchanged text": ({"between": "pass  # a comment"}, 0),
}


def chains(folder: Path, name: str, **parts: str) -> Path:
    text = CHAINS.replace("{between}", parts.get("between", "pass")).replace("{second}", parts.get("second", 'f"second {first.text}"'))
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edit_keeps_what_it_did_not_change(tmp_path: Path, edit: str) -> None:
    parts, more = EDITS[edit]
    failing = {"second <first 7>"}

    def respond(call: FakeCall) -> object:
        return ProviderUnavailable("down") if call.prompt in failing else f"<{call.prompt}>"

    async with open_lab(respond) as lab:
        failed = await lab.run(f"{chains(tmp_path, 'before')}:chains", 12)
        assert failed.state == "failed" and failed.reason["code"] == "provider_unavailable"
        done = {prompt for _, prompt, _ in lab.harness.calls} - failing
        failing.clear()
        lab.harness.calls.clear()
        run = await lab.resume_with(failed.run_id, chains(tmp_path, "after", **parts))
        again = [prompt for _, prompt, _ in lab.harness.calls]
    assert run.state == "completed" and len(run.result) == 12
    assert not done & set(again), "a completed call was made again"
    rest = 24 - len(done) if "second" not in parts else 24 - len([d for d in done if d.startswith("first")])
    assert len(again) == rest + (more if "between" in parts else 0)


async def test_unchanged_code_that_asks_otherwise_is_caught(tmp_path: Path) -> None:
    file = tmp_path / "moody.py"
    flag = tmp_path / "flag"
    file.write_text(
        "import os\nfrom capataz import program, run, sleep\n\n@program\nasync def moody() -> str:\n"
        f"    name = 'b' if os.path.exists({str(flag)!r}) else 'a'\n"
        "    first = await run(name, prompt=name)\n    second = await run('next', prompt='next')\n    return second.text\n"
    )

    async with open_lab(lambda call: call.prompt) as lab:
        run_id = await lab.start(f"{file}:moody")
        await lab.crash(run_id, 7)
        flag.touch()
        lab.harness.calls.clear()
        run = await lab.drive(run_id)
    assert run.state == "failed" and run.reason["code"] == "nondeterminism_error", run.reason
    assert "moody.py:7" in run.reason["message"]
    assert not lab.harness.calls, "nothing may run"


async def test_a_resume_of_a_failed_fan_out_runs_only_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "wide.py"
    file.write_text(
        "from capataz import fan_out, program, run\n\n@program\nasync def wide() -> int:\n"
        "    async def one(n: int) -> str:\n        return (await run('w', prompt=str(n))).text\n"
        "    done = await fan_out(list(range(102)), one, on_error='collect')\n"
        "    bad = [d for d in done if not isinstance(d, str)]\n"
        "    if bad:\n        raise RuntimeError(f'{len(bad)} failed')\n    return len(done)\n"
    )
    failing = {"17", "99"}
    async with open_lab(lambda c: ProviderUnavailable("down") if c.prompt in failing else c.prompt) as lab:
        failed = await lab.run(f"{file}:wide")
        assert failed.state == "failed" and "2 failed" in failed.reason["message"]
        failing.clear()
        lab.harness.calls.clear()
        run = await lab.resume_with(failed.run_id, file)
    assert run.result == 102 and len(lab.harness.calls) == 2


# ---- people and messages -------------------------------------------------------------------------


async def test_a_question_parks_the_run_and_an_answer_wakes_it(tmp_path: Path) -> None:
    file = tmp_path / "asking.py"
    file.write_text(
        "from capataz import ask, program\n\n@program\nasync def asking() -> str:\n"
        "    answer = await ask('Which?', kind='choice', options=['red', 'blue'])\n    return f'{answer.value} by {answer.who}'\n"
    )
    async with open_lab(lambda call: "") as lab:
        run = await lab.run(f"{file}:asking")
        assert run.state == "parked" and run.waiting[0]["on"] == "asks"
        (question,) = await lab.journal.asks(run_id=run.run_id)
        await lab.journal.answer(question.ask_id, "blue", by="ada", channel="test", at=0.0)
        run = await lab.drive(run.run_id)
    assert run.state == "completed" and run.result.startswith("blue by ada")


async def test_steering_reaches_a_running_agent_once_even_across_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "steered.py"
    file.write_text(
        "from capataz import program, spawn\n\n@program\nasync def steered() -> str:\n"
        "    agent = await spawn('worker', prompt='long')\n    await agent.notify('first')\n"
        "    await agent.notify('second')\n    return (await agent.result()).text\n"
    )

    async def respond(call: FakeCall) -> object:
        await asyncio.sleep(0.01)
        return MORE if call.turn < 4 else ",".join(call.steering)

    async with open_lab(respond) as lab:
        for number in (0, 6, 9, 12, 15):
            run_id = await lab.start(f"{file}:steered")
            if number:
                await lab.crash(run_id, number)
            run = await lab.drive(run_id)
            assert run.result == "first,second", number


async def test_the_run_stops_at_its_money(tmp_path: Path) -> None:
    from decimal import Decimal

    file = tmp_path / "dear.py"
    file.write_text(
        "from capataz import fan_out, program, run\n\n@program\nasync def dear() -> int:\n"
        "    async def one(n: int) -> str:\n        return (await run('w', prompt=str(n))).text\n"
        "    return len(await fan_out(list(range(30)), one, limit=8))\n"
    )
    async with open_lab(lambda call: "x", price=Decimal("0.10")) as lab:
        run = await lab.run(f"{file}:dear", budget_usd="1.00")
        usage = await lab.journal.usage(run.run_id)
    assert run.state == "failed" and run.reason["code"] == "budget_exhausted", run.reason
    assert usage.usd == Decimal("1.00") and len(lab.harness.calls) == 10


async def test_a_cancelled_run_says_so_and_can_be_resumed(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(
        "from capataz import program, run\n\n@program\nasync def slow() -> str:\n"
        "    a = await run('a', prompt='a')\n    return (await run('b', prompt='b')).text + a.text\n"
    )
    hold = asyncio.Event()

    async def respond(call: FakeCall) -> str:
        if call.prompt == "b":
            await hold.wait()
        return call.prompt

    async with open_lab(respond) as lab:
        run_id = await lab.start(f"{file}:slow")
        driving = asyncio.create_task(lab.drive(run_id))
        while ("b", "b", 0) not in lab.harness.calls:
            await asyncio.sleep(0.01)
        await lab.journal.post(run_id, "cancel", "enough", target=None, sender="ada", at=0.0)
        run = await driving
        assert (run.state, run.outcome, run.reason["message"]) == ("cancelled", "cancelled", "enough")
        hold.set()
        lab.harness.calls.clear()
        run = await lab.resume_with(run_id, file)
    assert run.result == "ba" and lab.harness.calls == [("b", "b", 0)]


async def test_a_short_sleep_is_waited_for_and_a_long_one_parks(tmp_path: Path) -> None:
    file = tmp_path / "sleepy.py"
    file.write_text(
        "from capataz import program, sleep\n\n@program\nasync def sleepy(input: float) -> str:\n"
        "    await sleep(input)\n    return 'awake'\n"
    )
    async with open_lab(lambda call: "") as lab:
        assert (await lab.run(f"{file}:sleepy", 0.05)).result == "awake"
        run = await lab.drive(await lab.start(f"{file}:sleepy", 3600.0), parking=Parking(sleeps_over_s=1))
        assert run.state == "parked" and run.ready_at is not None
