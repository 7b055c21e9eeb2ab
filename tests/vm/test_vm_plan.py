"""A plan says what a resume does, and does nothing."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from capataz.contracts.errors import ProviderUnavailable
from capataz.testing.lab import Lab, open_lab

CHAINS = '''
from capataz import checkpoint, fan_out, program, run, scope, budget

@program
async def chains(input: int) -> list[str]:
    {top}
    async def one(n: int) -> str:
        first = await run("first", prompt={first})
        await checkpoint("half")
        second = await run("second", prompt=f"second {{first.text}}")
        return second.text
    return await fan_out({items}, one, key=str)
'''
PARTS = {"top": "pass", "first": 'f"first {n}"', "items": "list(range(input))"}


def chains(folder: Path, name: str, **parts: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(CHAINS.format(**{**PARTS, **parts}))
    return file


def prompts(items: list[dict[str, object]], kind: str = "agent") -> int:
    return sum(item["kind"] == kind for item in items)


async def crashed(lab: Lab, folder: Path, failing: set[str]) -> str:
    run = await lab.run(f"{chains(folder, 'before')}:chains", 6)
    assert run.state == "failed"
    failing.clear()
    return run.run_id


EDITS = {
    # edit: agents that are reused and that are known to run in the plan, orphans, whether the plan reaches the end
    "none": ({}, 11, 1),
    "insert at the top": ({"top": 'await run("new", prompt="new")'}, 0, 1),
    "remove one": ({"items": "[n for n in range(input) if n != 2]"}, 9, 1),
    "edit one prompt": ({"first": 'f"first {n}" if n != 2 else "other"'}, 9, 2),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_a_plan_is_what_then_happens(tmp_path: Path, edit: str) -> None:
    parts, reused, run_at_least = EDITS[edit]
    failing = {"second <first 5>"}

    def respond(call):  # type: ignore[no-untyped-def]
        return ProviderUnavailable("down") if call.prompt in failing else f"<{call.prompt}>"

    async with open_lab(respond, price=Decimal("0.25")) as lab:
        run_id = await crashed(lab, tmp_path, failing)
        before = (len(lab.harness.calls), await lab.journal.events(run_id), await lab.journal.effects(run_id))
        plan = await lab.plan(run_id, chains(tmp_path, "after", **parts))
        assert before == (len(lab.harness.calls), await lab.journal.events(run_id), await lab.journal.effects(run_id))
        assert (prompts(plan["reused"]), prompts(plan["run"])) == (reused, run_at_least)
        assert Decimal(plan["price"]["estimate_usd"]) == Decimal("0.25") * run_at_least
        made = len(lab.harness.calls)
        run = await lab.resume_with(run_id, tmp_path / "after.py")
        assert run.state == "completed" and len(lab.harness.calls) - made >= run_at_least
        rows = [row for row in await lab.journal.effects(run_id) if row.kind == "agent"]
        assert {a["key"] for a in plan["reused"] if a["kind"] == "agent"} <= {r.key for r in rows if r.reused_from is not None}
        assert {a["key"] for a in plan["run"] if a["kind"] == "agent"} <= {r.key for r in rows if r.reused_from is None}


async def test_orphans_are_certain_when_the_end_is_reached(tmp_path: Path) -> None:
    async with open_lab(lambda call: f"<{call.prompt}>", price=Decimal("0.5")) as lab:
        run = await lab.run(f"{chains(tmp_path, 'before')}:chains", 3)
        plan = await lab.plan(run.run_id, chains(tmp_path, "after", items="[0, 2]"))
    assert plan["complete"] and plan["run"] == [] and plan["undecided"] == []
    assert all(o["certain"] for o in plan["orphans"])
    assert sorted(o["name"] for o in plan["orphans"]) == ["", "first", "second"] and plan["price"]["saved_usd"] == "2.0"


async def test_what_waits_for_a_result_is_undecided(tmp_path: Path) -> None:
    async with open_lab(lambda call: f"<{call.prompt}>") as lab:
        run = await lab.run(f"{chains(tmp_path, 'before')}:chains", 3)
        plan = await lab.plan(run.run_id, chains(tmp_path, "after", top='await run("new", prompt="new")'))
    assert not plan["complete"] and plan["orphans"] == [] and len(plan["undecided"]) == 9
    assert [(item["name"], item["why"]) for item in plan["run"]] == [("new", "new")] and plan["price"]["at_least"]


SEQUENCE = """
from capataz import program, run, step

def deploy(to: str) -> str:
    return to

@program
async def sequence() -> str:
    a = await run("a", prompt="a")
    {step}
    b = await run("b", prompt={b})
    return b.text + (await run("c", prompt=b.text)).text
"""


async def test_a_program_that_came_past_an_effect_has_probably_orphaned_it(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SEQUENCE.format(step='await step("deploy", deploy, "production", idempotent=False)', b='"b"'))
    after.write_text(SEQUENCE.format(step="pass", b='"other"'))
    async with open_lab(lambda call: f"<{call.prompt}>") as lab:
        run = await lab.run(f"{before}:sequence")
        plan = await lab.plan(run.run_id, after)
    assert [(o["name"], o["external"], o["certain"]) for o in plan["orphans"]] == [("deploy", True, False), ("b", False, False)]
    assert [item["name"] for item in plan["undecided"]] == ["c"] and plan["run"][0]["why"] == "changed"
