"""The examples of the pages, run as a reader would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import ROOT

EXAMPLES = ROOT / "docs" / "examples"


class Shell:
    def __init__(self, home: Path) -> None:
        self._env = {**os.environ, "CAPATAZ_HOME": str(home), "NO_COLOR": "1"}

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "capataz.cli.main", *args], cwd=EXAMPLES, env={**self._env, **env},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def capataz(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("docs") / "home")
    yield shell
    shell("db", "stop")


@pytest.mark.slow
def test_second_opinion_asks_survives_a_kill_and_ends_with_the_answer(capataz: Shell) -> None:
    start = ("run", "second_opinion.py", "--input", '"Drop the old table?"', "--model", "scripted:second_opinion_model.py", "--json")
    killed = capataz(*start, CAPATAZ_FAULT="ask.before")
    assert killed.returncode == -9, killed.stderr
    run_id = json.loads(capataz("ps", "--json").stdout)["runs"][0]["run_id"]
    parked = capataz("resume", run_id, "--json")
    assert parked.returncode == 0, parked.stderr
    shown = json.loads(parked.stdout)
    assert (shown["state"], shown["usage"]["repeated_model_calls"]) == ("parked", 0)
    [question] = json.loads(capataz("asks", "--json").stdout)["asks"]
    assert question["question"] == "Risk 7: the old table is still read by the nightly export. Go on?"
    answered = capataz("answer", question["ask_id"], "approve", "--json")
    assert answered.returncode == 0, answered.stderr
    done = json.loads(answered.stdout)
    assert done["state"] == "completed" and done["result"].endswith(" says approve")
    again = capataz("answer", question["ask_id"], "decline", "--json")
    assert (again.returncode, json.loads(again.stdout)["error"]["code"]) == (64, "already_answered")


@pytest.mark.slow
def test_audit_reads_files_in_steps_and_judges_each(capataz: Shell, tmp_path: Path) -> None:
    files = [tmp_path / "a.py", tmp_path / "ü b.py"]
    for file in files:
        file.write_text("x = 1\n", "utf-8")
    given = json.dumps({"files": [str(file) for file in files]})
    done = capataz("run", "audit.py:audit", "--input", given, "--model", "scripted:audit_model.py", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["result"] == [{"file": "a.py", "severity": 1, "text": "nothing found"}] * 2
    assert shown["usage"]["model_calls"] == 4
