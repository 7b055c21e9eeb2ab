"""The authoring surface is typed: what is right passes both checkers in strict mode, each wrong line is rejected by both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def marked() -> set[int]:
    lines = (HERE / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# rejected")}


def pyright(name: str, tmp_path: Path) -> set[int]:
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": [str(HERE / name)], "extraPaths": [str(ROOT / "src")],
              "reportUnusedVariable": False, "reportUnusedCallResult": False}  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--outputjson", "--pythonpath", sys.executable]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return {found["range"]["start"]["line"] + 1 for found in report["generalDiagnostics"] if found["severity"] == "error"}


def mypy(name: str, tmp_path: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--cache-dir", str(tmp_path), str(HERE / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "src")
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(rf"{name}:(\d+): error:", done.stdout)}


@pytest.mark.slow
@pytest.mark.parametrize("check", [pyright, mypy])
def test_right_code_passes(check: object, tmp_path: Path) -> None:
    assert check("ok.py", tmp_path) == set()  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("check", [pyright, mypy])
def test_each_wrong_line_is_rejected(check: object, tmp_path: Path) -> None:
    assert len(marked()) > 25
    assert check("wrong.py", tmp_path) == marked()  # type: ignore[operator]
