"""The library from the command line, each program on its own example: sandboxes, git and PostgreSQL are real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from capataz.wiring.crashtest import LIBRARY_SCRIPTS

DEMO = Path(str(files("capataz.demo")))
pytestmark = pytest.mark.slow


def git(repository: Path, *args: str) -> str:
    who = ("-c", "user.name=T", "-c", "user.email=t@capataz.invalid")
    return subprocess.run(["git", *who, *args], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


class Bed:
    def __init__(self, home: Path) -> None:
        self.home = home

    def capataz(self, place: Path, *args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "CAPATAZ_HOME": str(self.home), "NO_COLOR": "1"}
        argv = [sys.executable, "-m", "capataz.cli.main", *args]
        return subprocess.run(argv, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def play(self, place: Path, name: str, model: Path | None = None, **changed: Any) -> dict[str, Any]:
        """The result of a program on its example, with some fields of the input changed."""
        given = {**json.loads((DEMO / "library" / f"{name}.json").read_text("utf-8")), **changed}
        script = model or DEMO / LIBRARY_SCRIPTS[name]
        done = self.capataz(place, "run", name, "--input", json.dumps(given), "--model", f"scripted:{script}", "--json")
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = Bed(tmp_path_factory.mktemp("library") / "home")
    yield made
    made.capataz(made.home, "db", "stop")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    place = tmp_path / "sample"
    shutil.copytree(DEMO / "sample", place, ignore=shutil.ignore_patterns("__pycache__"))
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "Pages")):
        git(place, *args)
    return place


def branches(repository: Path) -> dict[str, str]:
    rows = git(repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return {row.split()[0]: row.split()[1] for row in rows}


def test_ralph_goes_on_until_the_check_passes_and_touches_no_other_branch(bed: Bed, sample: Path) -> None:
    before = branches(sample)
    shown = bed.play(sample, "ralph")
    result = shown["result"]
    assert (result["outcome"], [i["passed"] for i in result["iterations"]]) == ("passed", [False, True])
    own = f"refs/heads/capataz/{shown['run_id']}"
    assert branches(sample) == {**before, own: result["promotion"]["new"]}
    assert git(sample, "status", "--porcelain") == ""
    again = bed.play(sample, "ralph", base=own)["result"]
    assert (again["outcome"], again["iterations"]) == ("already_passed", [])


def test_ralph_ends_when_its_iterations_are_used_and_refuses_a_change_of_the_check(bed: Bed, sample: Path, tmp_path: Path) -> None:
    script = tmp_path / "cheat.py"
    script.write_text(
        "def respond(call):\n    if call.turn == 0:\n        return tool('run_command', command='echo > tests/test_slicing.py')\n"
        "    return submit(status='completed', summary='made the tests pass')\n"
    )
    result = bed.play(sample, "ralph", script, max_iterations=2)["result"]
    assert result["outcome"] == "not_passed" and result["promotion"] is None
    assert [i["error"].partition(":")[0] for i in result["iterations"]] == ["scope_violation"] * 2
    assert list(branches(sample)) == ["refs/heads/main"]


def test_research_keeps_what_the_tree_bears_out(bed: Bed, sample: Path) -> None:
    packet = bed.play(sample, "research")["result"]
    [code, tests] = packet["findings"]
    assert code["evidence"][0]["text"].splitlines()[0] == (sample / "pages/slicing.py").read_text().splitlines()[0]
    assert tests["evidence"][0]["reference"]["path"] == "tests/test_slicing.py"
    [rejected] = packet["rejected"]
    assert rejected["reason"] == "pages/slicing.py:4000 is not in the commit"
    assert packet["base_sha"] == branches(sample)["refs/heads/main"]
    assert packet["open_questions"] == ["Is a size of 0 meant to raise?"]


def test_goal_pr_takes_a_packet_and_publishes_what_the_reviewer_approved(bed: Bed, sample: Path) -> None:
    packet = bed.play(sample, "research")["result"]
    shown = bed.play(sample, "goal_pr", packet=packet)
    rounds = shown["result"]["rounds"]
    assert [r["approved"] for r in rounds] == [False, True]
    assert rounds[0]["issues"] == ["pages/slicing.py: an empty list has 0 pages, it must be 1"]
    assert branches(sample)[f"refs/heads/capataz/{shown['run_id']}"] == rounds[1]["sha"]


def test_goal_pr_publishes_nothing_that_was_not_approved(bed: Bed, sample: Path) -> None:
    result = bed.play(sample, "goal_pr", max_rounds=1)["result"]
    assert (result["outcome"], result["promotion"]) == ("not_approved", None)
    assert list(branches(sample)) == ["refs/heads/main"]


def test_autoresearch_leaves_the_branch_at_the_best(bed: Bed, sample: Path) -> None:
    shown = bed.play(sample, "autoresearch")
    result = shown["result"]
    assert [(e["status"], e["kept"]) for e in result["history"]] == [("ok", True), ("ok", False), ("crash", False), ("ok", True)]
    own = f"refs/heads/capataz/{shown['run_id']}"
    assert branches(sample)[own] == result["head"] == result["history"][3]["sha"]
    size = len(git(sample, "show", f"{own}:pages/slicing.py").encode()) + 1
    assert result["best"] == size < result["setup"]["baseline"]


OPTIMISE = """
STEPS = [
    "total = sum(n * n for n in range(1000)); steps = 1000\\n",
    "total = 0; steps = 1\\n",
    "n = 1000; total = (n - 1) * n * (2 * n - 1) // 6; steps = 3\\n",
]
def respond(call):
    number = int(call.agent.partition("experiment-")[2].partition("/")[0])
    if number == 2:
        return fail(status=401)
    if call.turn == 0:
        return tool("write_file", path="work.py", content=STEPS[number - (number > 2)])
    return submit(status="completed", summary=f"try {number}")
"""


def test_autoresearch_on_a_small_optimisation_survives_wrong_ideas_and_a_lost_provider(bed: Bed, tmp_path: Path) -> None:
    place = tmp_path / "maths"
    place.mkdir()
    (place / "work.py").write_text("total, steps = 0, 0\nfor n in range(1000):\n    for _ in range(n):\n        total += n; steps += 1\n")
    (place / "measure.py").write_text("from work import steps, total\nassert total == 332833500, total\nprint(f'steps: {steps}')\n")
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "Squares")):
        git(place, *args)
    script = tmp_path / "optimise.py"
    script.write_text(OPTIMISE)
    wanted = {"goal": "fewer steps", "measure": "python3 measure.py", "metric": "steps: ([0-9]+)", "protect": ["measure.py"]}
    shown = bed.play(place, "autoresearch", script, **wanted)
    result = shown["result"]
    assert [(e["status"], e["value"]) for e in result["history"]] == [("ok", 1000), ("crash", None), ("infra_fail", None), ("ok", 3)]
    assert (result["setup"]["baseline"], result["best"], result["outcome"]) == (499500, 3, "improved")
    assert git(place, "show", f"capataz/{shown['run_id']}:work.py").startswith("n = 1000")


def test_autoresearch_tries_nothing_that_it_cannot_measure(bed: Bed, sample: Path) -> None:
    shown = bed.play(sample, "autoresearch", measure="echo none")
    assert (shown["result"]["outcome"], shown["usage"]["model_calls"]) == ("setup_failed", 0)
    wrong = json.dumps({"goal": "g", "measure": "m", "metric": "[0-9]+"})
    refused = bed.capataz(sample, "run", "autoresearch", "--input", wrong, "--model", f"scripted:{DEMO / 'library/ralph.py'}")
    assert refused.returncode != 0 and "exactly one group" in refused.stderr


def test_heartbeat_remembers_and_pages_once(bed: Bed, tmp_path: Path) -> None:
    result = bed.play(tmp_path, "heartbeat")["result"]
    assert result == {"beats": 2, "memory": "paged for the queue", "last_report": "The queue is at 130.", "pages": 1, "failures": 0}


def test_release_rolls_back_pages_and_does_not_ask_on_staging(bed: Bed, tmp_path: Path) -> None:
    shown = bed.play(tmp_path, "release", rollback="echo back > restored")
    assert shown["result"]["outcome"] == "rolled_back" and (tmp_path / "restored").read_text() == "back\n"
    assert shown["result"]["attempts"][0]["errors"] == ["verify ended with 1: health: 503"]
    told = [json.loads(line) for line in bed.capataz(tmp_path, "events", shown["run_id"], "--json").stdout.splitlines()]
    assert any("rolled back" in json.dumps(event) and "page" in json.dumps(event) for event in told)


def test_release_asks_before_production_and_deploys_nothing_when_declined(bed: Bed, tmp_path: Path) -> None:
    parked = bed.play(tmp_path, "release", environment="production", deploy="touch deployed", verify="test -f deployed")
    assert parked["state"] == "parked"
    [ask] = json.loads(bed.capataz(tmp_path, "asks", "--run", parked["run_id"], "--json").stdout)["asks"]
    answered = bed.capataz(tmp_path, "answer", ask["ask_id"], "decline", "--json")
    assert json.loads(answered.stdout)["result"]["outcome"] == "declined" and not (tmp_path / "deployed").exists()
    second = bed.play(tmp_path, "release", environment="production", deploy="touch deployed", verify="test -f deployed")
    [ask] = json.loads(bed.capataz(tmp_path, "asks", "--run", second["run_id"], "--json").stdout)["asks"]
    answered = bed.capataz(tmp_path, "answer", ask["ask_id"], "approve", "--json")
    assert json.loads(answered.stdout)["result"]["outcome"] == "released" and (tmp_path / "deployed").exists()


def test_pr_watch_answers_each_comment_on_one_branch(bed: Bed, sample: Path) -> None:
    shown = bed.play(sample, "pr_watch")
    result = shown["result"]
    assert [r["outcome"] for r in result["replies"]] == ["published"] * 2
    own = f"capataz/{shown['run_id']}"
    assert git(sample, "rev-parse", own) == result["head"]
    assert git(sample, "diff", "--name-only", "main", own).split() == ["NOTES.md", "pages/slicing.py"]


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(LIBRARY_SCRIPTS))
def test_library_survives_a_kill_everywhere(name: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "capataz.cli.main", "crashtest", name, "--json"]
    done = subprocess.run(argv, env={**os.environ, "CAPATAZ_HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["violations"] == [] and found["crashes"] > 20


def test_release_survives_a_kill_and_a_kill_in_recovery(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "capataz.cli.main", "crashtest", "release", "--max-points", "1", "--json"]
    done = subprocess.run(argv, env={**os.environ, "CAPATAZ_HOME": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=300)
    assert json.loads(done.stdout)["violations"] == []
