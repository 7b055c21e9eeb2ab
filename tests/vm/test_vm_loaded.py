"""``run(load(...))``: a child from disk, checked and pinned at its first use."""

from __future__ import annotations

from pathlib import Path

import pytest

from capataz.contracts.journal import EffectRow
from capataz.testing.fake_agents import FakeCall
from capataz.testing.lab import Lab, open_lab

PARENT = '''from capataz import load, program, run
from capataz.contracts.errors import ChildInvalid


@program
async def parent(input: str) -> str:
    """Runs what it is given."""
    before = await run("before", prompt="before")
    try:
        said = await run(load(input), input=3)
    except ChildInvalid as error:
        return f"refused: {error} {[f['code'] for f in error.details['findings']]}"
    return f"{before.text} {said}"
'''
CHILD = '''from capataz import program, run
from parts import grand


@program
async def main(input: int) -> str:
    """A child with a child of its own."""
    mine = await run("mine", prompt=f"child {input}")
    return f"{mine.text} {await run(grand, input=input)}"
'''
PARTS = '''from capataz import program, run


@program
async def grand(input: int) -> str:
    """A grandchild, of the child's sources."""
    return (await run("deep", prompt=f"grand {input}")).text
'''


async def answer(call: FakeCall) -> str:
    return f"<{call.prompt}>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    other = tmp_path / "others"
    other.mkdir()
    (tmp_path / "flow.py").write_text(PARENT, "utf-8")
    (other / "child.py").write_text(CHILD, "utf-8")
    (other / "parts.py").write_text(PARTS, "utf-8")
    return tmp_path


async def start(lab: Lab, folder: Path, child: str) -> str:
    return await lab.start(f"{folder / 'flow.py'}:parent", child, cwd=str(folder))


async def test_a_child_from_disk_brings_its_own_sources(folder: Path) -> None:
    async with open_lab(answer) as lab:
        run = await lab.drive(await start(lab, folder, "others/child.py:main"))
    assert run.state == "completed", run.reason
    assert run.result == "<before> <child 3> <grand 3>"


@pytest.mark.parametrize("child", ["others/child.py:main", "others/missing.py:main"])
async def test_a_refused_child_raises_its_findings(folder: Path, child: str) -> None:
    (folder / "others" / "child.py").write_text(CHILD.replace("mine = await", "open('x')\n    mine ="), "utf-8")
    async with open_lab(answer) as lab:
        run = await lab.drive(await start(lab, folder, child))
    assert run.state == "completed", run.reason
    assert run.result.startswith(f"refused: the child program {child}")
    assert run.result.endswith("['CPZ002', 'CPZ001']" if "missing" not in child else "[]")
    assert ("others/child.py:8:5: CPZ002" in run.result) == ("missing" not in child)
    assert len(lab.harness.calls) == 1


async def _pin(lab: Lab, run_id: str) -> list[EffectRow]:
    return [row for row in await lab.journal.effects(run_id) if row.kind == "source" and row.status == "ok"]


async def test_a_child_keeps_the_sources_of_its_first_use_over_every_crash(folder: Path) -> None:
    """Its file is broken as soon as it is pinned: what was pinned goes on."""
    file = folder / "others" / "child.py"
    async with open_lab(answer) as lab:
        number, pinned = 1, 0
        while True:
            file.write_text(CHILD, "utf-8")
            run_id = await start(lab, folder, "others/child.py:main")
            where = await lab.crash(run_id, number)
            if where is None:
                break
            if await _pin(lab, run_id):
                file.write_text("def broken(:\n", "utf-8")
                pinned += 1
            run = await lab.drive(run_id)
            assert (run.state, run.result) == ("completed", "<before> <child 3> <grand 3>"), (number, where, run.reason)
            assert len(await _pin(lab, run_id)) == 1
            number += 1
    assert 0 < pinned < number - 1
