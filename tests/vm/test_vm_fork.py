"""A fork takes over results up to a key, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from capataz.contracts.errors import NotFound, UsageError
from capataz.testing.lab import open_lab

PROGRAM = '''
import random
import time

from capataz import fan_out, now, program, run, scope, step

def note(path: str, text: str) -> str:
    with open(path, "a") as file:
        file.write(text)
    return text

@program
async def inner(input: int) -> str:
    a = await run("a", prompt=f"a{input} {random.random()}")
    return (await run("b", prompt=a.text)).text

@program
async def forked(input: str) -> list[str]:
    """Its prompts depend on chance and time."""
    one = await run("one", prompt=f"one {random.random()} {time.time()}")
    await step("note", note, input, "x")
    two = await run("two", prompt=f"two {one.text} {random.random()}")
    child = await run(inner, input=1)
    three = await run("three", prompt=f"three {two.text} {child} {random.random()}")
    return [one.text, two.text, child, three.text]
'''


def forked(folder: Path) -> str:
    (folder / "forked.py").write_text(PROGRAM)
    return f"{folder / 'forked.py'}:forked"


@pytest.mark.parametrize(("kind", "name", "again"), [
    ("agent", "one", ["two", "inner/a", "inner/b", "three"]), ("agent", "two", ["inner/a", "inner/b", "three"]),
    ("agent", "a", ["inner/b", "three"]), ("child", "inner", ["three"]), ("agent", "three", []),
])  # fmt: skip
async def test_only_what_came_later_runs(tmp_path: Path, kind: str, name: str, again: list[str]) -> None:
    answers = {}

    def respond(call):  # type: ignore[no-untyped-def]
        return answers.setdefault(call.prompt, f"<{call.agent} {random.random()}>")

    async with open_lab(respond) as lab:
        run = await lab.run(forked(tmp_path), str(tmp_path / "log"))
        assert run.state == "completed", run.reason
        key = next(row.key for row in await lab.journal.effects(run.run_id) if (row.kind, row.name) == (kind, name))
        lab.harness.calls.clear()
        fork = await lab.fork(run.run_id, key)
        assert not lab.harness.calls
        done = await lab.drive(fork)
        assert done.parent_run == run.run_id and done.run_id != run.run_id
        assert [agent for agent, _, _ in lab.harness.calls] == again
        assert done.result == run.result, "the same chance and clock make the same prompts, hence the same answers"
        usage = await lab.journal.usage(fork)
        assert usage.model_calls == len(again), "what was taken over is not paid again"
    assert (tmp_path / "log").read_text() == ("xx" if name == "one" else "x")


async def test_a_fork_killed_anywhere_ends_the_same(tmp_path: Path) -> None:
    async with open_lab(lambda call: f"<{call.agent}>") as lab:
        run = await lab.run(forked(tmp_path), str(tmp_path / "log"))
        key = next(row.key for row in await lab.journal.effects(run.run_id) if row.name == "two")
        for number in range(1, 40, 4):
            fork = await lab.fork(run.run_id, key)
            lab.harness.calls.clear()
            where = await lab.crash(fork, number)
            done = await lab.drive(fork)
            assert done.result == run.result, where
            assert not {"one", "two"} & {agent for agent, _, _ in lab.harness.calls}
            if where is None:
                break


async def test_a_key_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    async with open_lab(lambda call: "x") as lab:
        run = await lab.run(forked(tmp_path), str(tmp_path / "log"))
        with pytest.raises(NotFound, match="capataz tree"):
            await lab.fork(run.run_id, "agent:nobody")
        with pytest.raises(UsageError, match="in full"):
            await lab.fork(run.run_id, "agent:")
        assert await lab.fork(run.run_id, "agent:two")
