"""The bound: the most agents, turns and money."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from capataz.vm.checker import check

HEAD = """from capataz import budget, fan_out, loop, program, run, scope, spawn

async def one(n: int) -> str:
    return (await run("worker", prompt=str(n), max_turns=5)).text

"""


class Book:
    """A dollar a call, for one model."""

    def problem(self, model: str) -> str | None:
        return None

    def worst_call_usd(self, model: str) -> float | None:
        return 1.0 if model == "known" else None


def bound(folder: Path, body: str, *, decorator: str = "@program", head: str = HEAD) -> dict[str, Any]:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    (folder / "flow.py").write_text(f"{head}{decorator}\nasync def flow(input: list[str]) -> None:\n{lines}\n", "utf-8")
    return check("flow.py:flow", cwd=folder, models=Book()).bound.to_json()


@pytest.mark.parametrize(
    ("body", "agents", "turns"),
    [
        ("pass", 0, 0),
        ("await one(1)", 1, 5),
        ("await run('a', prompt='x')", 1, 40),
        ("for n in range(3):\n    await one(n)", 3, 15),
        ("for n in range(2, 10, 3):\n    await one(n)", 3, 15),
        ("for n in range(min(len(input), 4)):\n    await one(n)", 4, 20),
        ("for n in [1, 2]:\n    for m in (3, 4, 5):\n        await one(n * m)", 6, 30),
        ("await fan_out(list(range(7)), one, limit=2)", 7, 35),
        ("await fan_out(input[:3], lambda name: run(name, prompt='x', max_turns=2))", 3, 6),
        ("[await one(n) for n in range(3) if n]", 3, 15),
        ("if input:\n    await one(1)\nelse:\n    await one(2)\n    await one(3)", 2, 10),
        ("try:\n    await one(1)\nexcept ValueError:\n    await one(2)\nexcept KeyError:\n    pass\nfinally:\n    await one(3)", 3, 15),
        ("h = await spawn('a', prompt='x', max_turns=1)\nawait h", 1, 1),
        ("async with scope('s', budget=budget(agents=2, turns=7)):\n    for n in range(9):\n        await one(n)", 2, 7),
        ("for n, m in zip(range(4), input):\n    await one(n)", 4, 20),
        ("await one(1) if input else None", 1, 5),
        ("while False:\n    await one(1)", 0, 0),
        ("for name in input:\n    print(name)", 0, 0),
    ],
)
def test_what_is_counted(tmp_path: Path, body: str, agents: int, turns: int) -> None:
    found = bound(tmp_path, body)
    assert (found["agents"], found["turns"]) == (agents, turns)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("for name in input:\n    await one(1)", 8),
        ("await fan_out(input, one)", 8),
        ("await one(1)\nwhile True:\n    await one(1)", 9),
        ("while input:\n    await one(1)", 8),
        ("[await one(1) for n in input]", 8),
        ("found: list[int] = []\nfound.append(1)\nfor n in found:\n    await one(n)", 10),
        ("await loop(one, 1)", 8),
        ("await flow(input)\nawait one(1)", 7),
    ],
)
def test_what_has_no_bound_names_its_line(tmp_path: Path, body: str, line: int) -> None:
    found = bound(tmp_path, body)
    assert found["agents"] is None
    assert {(u["file"], u["line"]) for u in found["unbounded"] if u["what"] == "agents"} == {("flow.py", line)}


def test_money_is_what_budgets_or_prices_say(tmp_path: Path) -> None:
    assert bound(tmp_path, "await one(1)")["usd"] is None
    assert bound(tmp_path, "await one(1)", decorator='@program(budget=budget(usd="2.50"))')["usd"] == "2.50"
    assert bound(tmp_path, "await run('a', prompt='x', model='known', max_turns=3)")["usd"] == "3.00"
    assert bound(tmp_path, "await run('a', prompt='x', model='other', max_turns=3)")["usd"] is None
    body = "await run('a', prompt='x', budget=budget(usd=1))\nasync with scope('s', budget=budget(usd=2)):\n    await one(1)"
    assert Decimal(bound(tmp_path, body)["usd"]) == 3


def test_a_child_counts_under_its_own_budget_and_its_parents(tmp_path: Path) -> None:
    head = HEAD + '@program(budget=budget(agents=10))\nasync def child() -> None:\n    while True:\n        await one(1)\n\n'
    assert bound(tmp_path, "await run(child)", head=head)["agents"] == 10
    assert bound(tmp_path, "await run(child, budget=budget(agents=4))", head=head)["agents"] == 4
    assert bound(tmp_path, "for n in range(3):\n    await run(child)", head=head)["agents"] == 30


def test_the_line_for_people(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(HEAD + "@program\nasync def flow() -> None:\n    while True:\n        await one(1)\n", "utf-8")
    assert str(check("flow.py", cwd=tmp_path).bound).startswith("unbounded because line 8 of flow.py is a loop")
    (tmp_path / "flow.py").write_text(HEAD + "@program(budget=budget(usd=2))\nasync def flow() -> None:\n    await one(1)\n", "utf-8")
    assert str(check("flow.py", cwd=tmp_path).bound) == "at most 1 agent, 5 turns, $2.00"
