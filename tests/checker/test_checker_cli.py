"""``capataz check``: words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capataz.cli.entry import invoke

SOUND = 'from capataz import budget, program, run\n\n\n@program(budget=budget(usd=1))\nasync def flow() -> None:\n    await run("a", prompt="x")\n'
FAULTY = SOUND.replace("await run", "run")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPATAZ_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_sound_program(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "flow.py").write_text(SOUND, "utf-8")
    assert invoke(["check", "flow.py"]) == 0
    assert capfd.readouterr().out.splitlines() == ["flow.py: no errors, no warnings", "bound: at most 1 agent, 40 turns, $1.00"]
    assert not (folder / "home").exists()


def test_a_faulty_program(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "flow.py").write_text(FAULTY, "utf-8")
    assert invoke(["check", "flow.py:flow"]) == 1
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith("flow.py:6:5: error CPZ001: run() is not awaited")
    assert out[1].startswith("    fix: ")
    assert out[2] == "flow.py:flow: 1 error, no warnings"


def test_json(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "flow.py").write_text(FAULTY, "utf-8")
    assert invoke(["check", "flow.py", "--json"]) == 1
    said = json.loads(capfd.readouterr().out)
    assert (said["ok"], said["warnings"], said["bound"]["agents"], said["bound"]["usd"]) == (False, [], 1, "1.00")
    assert {"code": "CPZ001", "severity": "error", "file": "flow.py", "line": 6, "col": 5}.items() <= said["errors"][0].items()


@pytest.mark.parametrize("name", ["missing.py", "missing", "broken.py", "plain.py", "."])
def test_a_file_that_cannot_be_used(folder: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    (folder / "broken.py").write_text("def (\n", "utf-8")
    (folder / "plain.py").write_text("x = 1\n", "utf-8")
    assert invoke(["check", name]) == 64
    said = capfd.readouterr()
    assert (said.out, said.err.count("\n"), said.err[:9]) == ("", 1, "capataz: ")
    assert "Traceback" not in said.err


def test_warnings_alone_are_no_failure(folder: Path) -> None:
    (folder / "flow.py").write_text(
        'from capataz import program, step\n\n\ndef pay() -> int:\n    return 1\n\n\n@program\nasync def flow() -> int:\n'
        '    return await step("pay", pay, idempotent=False)\n', "utf-8"
    )
    assert invoke(["check", "flow.py"]) == 0


def test_bundled_programs_by_name(folder: Path) -> None:
    assert invoke(["check", "ultracode"]) == 0
    assert invoke(["check", "capataz.programs.single:single"]) == 0
