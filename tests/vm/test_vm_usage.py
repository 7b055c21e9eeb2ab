"""Who used what."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from capataz.testing.lab import open_lab
from capataz.wiring.usage import OWN, usage_by

PROGRAM = '''
from capataz import program, run, scope

@program
async def child(input: int) -> str:
    return (await run("inner", prompt=str(input))).text

@program
async def parent() -> str:
    async with scope("s"):
        a = await run("a", prompt="a")
        await run("a", prompt="b")
    return a.text + await run(child, input=1)
'''


async def test_usage_by_agent_and_program_adds_up(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PROGRAM)
    async with open_lab(lambda call: "x", price=Decimal("0.25"), tokens=3) as lab:
        run = await lab.run(f"{tmp_path / 'parent.py'}:parent")
        found = usage_by(await lab.journal.effects(run.run_id))
        total = await lab.journal.usage(run.run_id)
    assert {name: (u["usd"], u["model_calls"]) for name, u in found["agent"].items()} == {"s/a": ("0.50", 2), "child/inner": ("0.25", 1)}
    assert found["program"][OWN]["usd"] == "0.50" and sum(u["input_tokens"] for u in found["program"].values()) == total.input_tokens
