"""The authoring surface is typed: what is right passes both checkers in strict mode, each wrong line is rejected by both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = [HERE / "ok.py", HERE / "wrong.py"]


def marked() -> set[int]:
    lines = (HERE / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# rejected")}


def pyright(_: Path) -> dict[str, set[int]]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, FILES)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    errors = [found for found in report["generalDiagnostics"] if found["severity"] == "error"]
    return {path.name: {e["range"]["start"]["line"] + 1 for e in errors if Path(e["file"]) == path} for path in FILES}


def mypy(tmp_path: Path) -> dict[str, set[int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--cache-dir", str(tmp_path), *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "src")
    assert done.returncode in (0, 1), done.stderr
    return {path.name: {int(n) for n in re.findall(rf"{path.name}:(\d+): error:", done.stdout)} for path in FILES}


@pytest.mark.slow
@pytest.mark.parametrize("check", [pyright, mypy])
def test_right_lines_pass_and_wrong_ones_do_not(check: Callable[[Path], dict[str, set[int]]], tmp_path: Path) -> None:
    assert len(marked()) > 25
    assert check(tmp_path) == {"ok.py": set(), "wrong.py": marked()}
