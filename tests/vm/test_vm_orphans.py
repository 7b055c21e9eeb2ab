"""What an edited program no longer asks for: listed, and decided where it took effect outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from capataz.testing.lab import Lab, open_lab
from capataz.vm.orphans import orphans, to_show

PROGRAM = '''
from capataz import program, run, step

def deploy(to: str) -> str:
    with open({log!r}, "a") as file:
        file.write(to + "\\n")
    return "deployed " + to

@program
async def release() -> str:
    {first}
    {second}
    last = await run("last", prompt="last")
    return last.text
'''
DEPLOY = 'await step("deploy", deploy, "production", idempotent=False)'
NOTE = 'await run("note", prompt="note")'


def release(folder: Path, name: str, first: str = DEPLOY, second: str = NOTE) -> Path:
    file = folder / f"{name}.py"
    file.write_text(PROGRAM.format(log=str(folder / "log"), first=first, second=second))
    return file


async def of(lab: Lab, run_id: str) -> list[str]:
    run = await lab.journal.get_run(run_id)
    rows = await lab.journal.effects(run_id)
    assert to_show(run, rows)
    earlier = [row for g in range(run.generation) for row in await lab.journal.effects(run_id, generation=g)]
    return [f"{row.kind} {row.name}" for row in await orphans(rows, earlier, lab.large)]


async def stopped(lab: Lab, folder: Path) -> str:
    """A run that deployed and was cancelled in its last call."""
    run_id = await lab.start(f"{release(folder, 'before')}:release")
    failed = await lab.drive(run_id)
    assert failed.state == "failed"
    return run_id


def failing_once():  # type: ignore[no-untyped-def]
    from capataz.contracts.errors import ProviderUnavailable

    state = {"down": True}

    def respond(call):  # type: ignore[no-untyped-def]
        return ProviderUnavailable("down") if call.prompt == "last" and state.pop("down", False) else f"<{call.prompt}>"

    return respond


async def test_a_call_that_went_away_is_an_orphan(tmp_path: Path) -> None:
    async with open_lab(failing_once()) as lab:
        run_id = await stopped(lab, tmp_path)
        run = await lab.resume_with(run_id, release(tmp_path, "after", second="pass"))
        assert run.state == "completed" and await of(lab, run_id) == ["agent note"]
    assert (tmp_path / "log").read_text() == "production\n"


@pytest.mark.parametrize("answer", ["approve", "decline"])
async def test_an_orphan_that_took_effect_outside_needs_an_answer(tmp_path: Path, answer: str) -> None:
    async with open_lab(failing_once()) as lab:
        run_id = await stopped(lab, tmp_path)
        run = await lab.resume_with(run_id, release(tmp_path, "after", first="pass"))
        assert run.state == "parked" and run.waiting[0]["on"] == "asks"
        assert await of(lab, run_id) == ["step deploy"]
        assert (await lab.drive(run_id)).state == "parked", "asked once, and still open"
        (ask,) = await lab.journal.asks(run_id=run_id)
        assert "deploy" in ask.question and ask.context["orphans"][0]["name"] == "deploy"
        await lab.journal.answer(ask.ask_id, answer, by="ada", channel="test", at=1.0)
        calls = len(lab.harness.calls)
        run = await lab.drive(run_id)
        assert len(lab.harness.calls) == calls, "nothing is made again for the decision"
    assert run.state == ("completed" if answer == "approve" else "failed")
    assert answer == "approve" or run.reason["code"] == "ask_declined"


async def test_orphans_accepted_beforehand_are_not_asked_about(tmp_path: Path) -> None:
    async with open_lab(failing_once()) as lab:
        run_id = await stopped(lab, tmp_path)
        run = await lab.resume_with(run_id, release(tmp_path, "after", first="pass"), accept_orphans=True)
        assert run.state == "completed" and await of(lab, run_id) == ["step deploy"]


async def test_an_external_effect_that_was_under_way_is_an_orphan_too(tmp_path: Path) -> None:
    async with open_lab(lambda call: call.prompt) as lab:
        run_id = await lab.start(f"{release(tmp_path, 'before')}:release")
        number, where = 0, ""
        while where != "step.before":
            number += 1
            run_id = await lab.start(f"{tmp_path / 'before.py'}:release")
            where = await lab.crash(run_id, number) or ""
        run = await lab.resume_with(run_id, release(tmp_path, "after", first="pass"))
        assert run.state == "parked" and await of(lab, run_id) == ["step deploy"]


CHILD = '''
from capataz import program, run

@program
async def child(input: int) -> str:
    a = await run("a", prompt=f"a{input}")
    b = await run("b", prompt={b})
    return b.text

@program
async def parent() -> str:
    one = await run(child, input=1)
    return one + (await run("last", prompt="last")).text
'''


async def test_a_child_of_edited_sources_is_entered_again_and_keeps_its_own_results(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(CHILD.replace("{b}", '"b"'))
    after.write_text(CHILD.replace("{b}", '"changed"'))
    async with open_lab(failing_once()) as lab:
        failed = await lab.run(f"{before}:parent")
        assert failed.state == "failed"
        lab.harness.calls.clear()
        run = await lab.resume_with(failed.run_id, after)
        assert run.result == "<changed><last>"
        assert [prompt for _, prompt, _ in lab.harness.calls] == ["changed", "last"]
        assert await of(lab, run.run_id) == ["agent b"]
