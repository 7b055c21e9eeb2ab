"""crashtest from the command line: in memory on a program of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
from capataz import ask, fan_out, program, run

@program
async def flow(input: int) -> list[str]:
    async def one(n: int) -> str:
        return (await run("w", prompt=str(n))).text
    got = await fan_out(list(range(input)), one)
    return [*got, (await ask("Go on?")).value]
"""
BAD = """
from pathlib import Path

from capataz import program, run, step

def count(file: str) -> int:
    place = Path(file)
    number = len(place.read_text()) if place.exists() else 0
    place.write_text("x" * (number + 1))
    return number

@program
async def counting(input: str) -> int:
    first = await step("count", count, input)
    if first:
        raise ValueError("a step that counts is not idempotent")
    return first
"""


def crashtest(*args: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "CAPATAZ_HOME": str(home)}
    return subprocess.run([sys.executable, "-m", "capataz.cli.main", "crashtest", *args, "--json"], env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_sound_program_has_no_violation_and_a_seed_repeats(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(GOOD)
    args = (f"{tmp_path / 'flow.py'}:flow", "--input", "2", "--max-points", "4", "--seed", "7")
    found = [json.loads(crashtest(*args, home=tmp_path / "home").stdout) for _ in range(2)]
    assert found[0]["violations"] == [] and found[0]["crashes"] >= 4 and found[0]["mode"] == "memory"
    assert set(found[0]["by_point"]) == set(found[1]["by_point"])
    assert not (tmp_path / "home").exists() or not list((tmp_path / "home").iterdir())


@pytest.mark.slow
def test_a_program_that_is_not_sound_is_found_out(tmp_path: Path) -> None:
    """Each case writes to the same file, so the step of a second run sees the first."""
    (tmp_path / "counting.py").write_text(BAD)
    (tmp_path / "n").write_text("")
    done = crashtest(f"{tmp_path / 'counting.py'}:counting", "--input", json.dumps(str(tmp_path / "n")), "--max-points", "3", home=tmp_path / "home")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["violations"] and "VIOLATION" not in done.stdout
