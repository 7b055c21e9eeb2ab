"""Budgets of running programs, in every dimension; topping up; effects in doubt."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from capataz.testing.fake_agents import MORE
from capataz.testing.lab import open_lab

WIDE = '''
from capataz import budget, fan_out, program, run, scope

@program
async def wide(input: int) -> int:
    async def one(n: int) -> str:
        return (await run("w", prompt=str(n){more})).text
    async with scope("s", budget=budget({limits})):
        return len(await fan_out(list(range(input)), one, limit=8))
'''
DIMENSIONS = {"agents=3": 3, "turns=4": 4, "tokens=60": 3, "usd='0.5'": 5}


def wide(folder: Path, limits: str, more: str = "") -> str:
    (folder / "wide.py").write_text(WIDE.format(limits=limits, more=more))
    return f"{folder / 'wide.py'}:wide"


@pytest.mark.parametrize("limits", DIMENSIONS)
async def test_a_scope_stops_at_its_limit(tmp_path: Path, limits: str) -> None:
    async with open_lab(lambda call: "x", price=Decimal("0.1"), tokens=10) as lab:
        run = await lab.run(wide(tmp_path, limits), 10)
    assert run.state == "failed" and run.reason["code"] == "budget_exhausted" and "scope s" in run.reason["message"]
    assert len(lab.harness.calls) == DIMENSIONS[limits]


async def test_running_time_ends_a_call_that_is_under_way(tmp_path: Path) -> None:
    async def respond(call):  # type: ignore[no-untyped-def]
        await asyncio.sleep(30)
        return "late"

    async with open_lab(respond) as lab:
        run = await asyncio.wait_for(lab.run(wide(tmp_path, "wall=0.2"), 3), 20)
    assert run.reason["code"] == "budget_exhausted" and "running time" in run.reason["message"]


async def test_a_paused_run_goes_on_when_its_budget_is_raised(tmp_path: Path) -> None:
    async with open_lab(lambda call: "x", price=Decimal("0.1")) as lab:
        run = await lab.run(wide(tmp_path, "usd='0.3'", ", on_exhausted='pause'"), 6)
        assert run.state == "parked" and {w["on"] for w in run.waiting} == {"budget"} and run.waiting[0]["account"] == "s"
        assert len(lab.harness.calls) == 3
        assert (await lab.drive(run.run_id)).state == "parked", "nothing has changed"
        await lab.journal.post(run.run_id, "topup", {"account": "s", "usd": "0.2"}, target=None, sender="ada", at=0.0)
        for number in (3, 6, 9):  # killed while it takes the money: it counts once
            await lab.crash(run.run_id, number)
        assert (await lab.drive(run.run_id)).state == "parked" and len(lab.harness.calls) <= 5 + 3
        usage = await lab.journal.usage(run.run_id)
        assert usage.usd == Decimal("0.5")
        await lab.journal.post(run.run_id, "topup", {"account": "s", "usd": "1"}, target=None, sender="ada", at=0.0)
        assert (await lab.drive(run.run_id)).result == 6


async def test_64_agents_in_a_tree_race_for_one_dollar_across_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "tree.py"
    file.write_text(
        "from capataz import fan_out, program, run, scope\nfrom capataz.contracts.errors import BudgetExhausted\n\n@program\nasync def tree() -> int:\n"
        "    async def leaf(n: int) -> str:\n        return (await run('leaf', prompt=str(n))).text\n"
        "    async def branch(n: int) -> int:\n        async with scope(f'b{n}'):\n"
        "            got = await fan_out([n * 4 + k for k in range(4)], leaf, on_error='collect')\n"
        "        return sum(isinstance(g, str) for g in got)\n"
        "    async def top(n: int) -> int:\n        async with scope(f't{n}'):\n"
        "            return sum(await fan_out([n * 4 + k for k in range(4)], branch))\n"
        "    return sum(await fan_out(list(range(4)), top))\n"
    )

    async def respond(call):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0.002)
        return MORE if call.turn < 1 and int(call.prompt) % 2 else "done"

    async with open_lab(respond, price=Decimal("0.03")) as lab:
        run_id = await lab.start(f"{file}:tree", budget_usd="1.00")
        for number in (40, 70):
            await lab.crash(run_id, number)
        run = await lab.drive(run_id)
        usage = await lab.journal.usage(run_id)
        (root,) = [a for a in await lab.journal.accounts(run_id) if a.account == ""]
    assert run.state == "completed" and 0 < run.result < 64
    assert usage.usd <= Decimal("1.00") and root.used.usd <= Decimal("1.00") and root.overrun.usd == 0


DOUBT = '''
from capataz import program, step

def pay(path: str) -> str:
    with open(path, "a") as file:
        file.write("paid\\n")
    return "receipt"

@program
async def payment(input: str) -> str:
    return await step("pay", pay, input, idempotent=False)
'''


@pytest.mark.parametrize(("decision", "result", "paid"), [({"redo": True}, "receipt", 2), ({"result": "by hand"}, "by hand", 1)])
async def test_an_effect_in_doubt_is_decided_once(tmp_path: Path, decision: dict[str, object], result: str, paid: int) -> None:
    (tmp_path / "payment.py").write_text(DOUBT)
    log = tmp_path / "log"
    async with open_lab(lambda call: "") as lab:
        where, number = "", 0
        while where != "step.after":
            number += 1
            run_id = await lab.start(f"{tmp_path / 'payment.py'}:payment", str(log))
            log.unlink(missing_ok=True)
            where = await lab.crash(run_id, number) or ""
        run = await lab.drive(run_id)
        assert run.state == "parked" and "did it happen" in run.waiting[0]["doubt"]
        await lab.journal.post(run_id, "resolve", decision, target=run.waiting[0]["key"], sender="ada", at=0.0)
        run = await lab.drive(run_id)
        assert run.result == result and log.read_text() == "paid\n" * paid and not await lab.journal.inbox(run_id)


async def test_a_redo_that_is_killed_is_in_doubt_again(tmp_path: Path) -> None:
    (tmp_path / "payment.py").write_text(DOUBT)
    async with open_lab(lambda call: "") as lab:
        where, number = "", 0
        while where != "step.after":
            number += 1
            run_id = await lab.start(f"{tmp_path / 'payment.py'}:payment", str(tmp_path / "log"))
            where = await lab.crash(run_id, number) or ""
        run = await lab.drive(run_id)
        for number in range(1, 20):
            await lab.journal.post(run_id, "resolve", {"redo": True}, target=run.waiting[0]["key"], sender="ada", at=0.0)
            where = await lab.crash(run_id, number)
            if where == "step.before":
                break
        assert where == "step.before"
        run = await lab.drive(run_id)
    assert run.state == "parked" and "doubt" in run.waiting[0], "one decision, one more try"
