"""kill -9 at fault points and at any moment: a resume finishes with the same commit, and nothing is done or left twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from crash_case import CrashCase
from main_job import PATIENCE_S, Cli, Outcome, finish, log_lines, small_repository

from capataz.contracts.faults import POINTS

# One of each kind of moment, for every change; the sweep has all.
FEW = ["journal.commit.after:12", "tool.after:3", "freeze.after:1", "promote.after:1"]
JOURNAL = (1, 2, 5, 11, 23, 47)
NOT_OF_THIS_JOB = ("step.", "ask.", "state.", "epoch.")   # the job has no steps, states or loops, and policy answers its question


def occurrences(point: str) -> tuple[int, ...]:
    return JOURNAL if point.startswith("journal.") else (1, 2, 4)


ALL = [f"{point}:{n}" for point in POINTS if not point.startswith(NOT_OF_THIS_JOB) for n in occurrences(point)]


def killed_at(cli: Cli, folder: Path, fault: str, **again: str) -> bool:
    """Kills a job at ``fault``, carries it on and judges it. False: the point was not reached."""
    case = CrashCase.new(cli, folder)
    run_id, reached = case.kill_at(fault)
    if run_id is None:
        assert log_lines(cli.script_log) == []
        run_id, _ = case.kill_at("step.before:1")      # killed before the run was stored: it is simply done again
    assert run_id is not None
    wrong = case.recover(run_id, **again)
    assert wrong == [], f"run {run_id}"
    return reached


@pytest.mark.parametrize("fault", FEW)
def test_killed_at_a_point(cli: Cli, tmp_path: Path, fault: str) -> None:
    assert killed_at(cli, tmp_path / "repo", fault)


@pytest.mark.sweep
@pytest.mark.parametrize("fault", ALL)
def test_killed_at_every_point(cli: Cli, tmp_path: Path, fault: str) -> None:
    reached = killed_at(cli, tmp_path / "repo", fault)
    assert reached or not fault.endswith(":1"), "the job never came to this point"


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_killed_again_while_it_recovers(cli: Cli, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    points = [point for point in POINTS if not point.startswith(NOT_OF_THIS_JOB)]
    first, second = (f"{dice.choice(points)}:{dice.randint(1, 3)}" for _ in range(2))
    killed_at(cli, tmp_path / "repo", first, CAPATAZ_FAULT=second)


@pytest.fixture(scope="module")
def duration_s(home: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the job takes here when nothing kills it, by its own count, and the start of the command."""
    folder = tmp_path_factory.mktemp("quiet")
    cli = Cli(home, folder / "log.jsonl")
    case = CrashCase.new(cli, folder / "repo")
    done = cli.run(*case.start_args())
    assert done.code == 0, done
    return done.json["usage"]["wall_s"] + 1.5


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_killed_at_a_random_moment(cli: Cli, tmp_path: Path, duration_s: float, seed: int) -> None:
    case = CrashCase.new(cli, tmp_path / "repo")
    process = cli.start(*case.start_args())
    try:
        process.wait(random.Random(seed).uniform(0.3, duration_s))
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    run_id = case.run_id_of(finish(process))
    if run_id is not None:
        assert case.recover(run_id) == [], f"run {run_id}"


@pytest.mark.parametrize("what", ["capataz.vm.zygote", "bwrap", "postgres"])
def test_a_helper_is_killed_in_mid_run(cli: Cli, tmp_path: Path, home: Path, what: str) -> None:
    """The run goes on by itself, or ends with a typed reason and a resume finishes it."""
    case = CrashCase(cli, small_repository(tmp_path / "repo"))
    process = cli.start(*case.start_args())
    done = _kill_helpers(process, cli, home, what)
    run_id = case.run_id_of(done)
    assert run_id is not None, done
    assert "Traceback" not in done.err, done.err
    assert case.recover(run_id) == []


def _kill_helpers(process: subprocess.Popen[str], cli: Cli, home: Path, what: str) -> Outcome:
    """Kills the helpers of that name once, when the first worker has called."""
    deadline = time.monotonic() + PATIENCE_S
    while len(log_lines(cli.script_log)) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    victims: list[int] = []
    while not victims and process.poll() is None and time.monotonic() < deadline:
        victims = postmaster(home) if what == "postgres" else [pid for pid in _children(process.pid) if what in _command(pid)]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return finish(process)


def postmaster(home: Path) -> list[int]:
    files = list(home.glob("**/postmaster.pid"))
    return [int(files[0].read_text().split("\n")[0])] if files else []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                kids = [int(k) for k in task.read_text().split()]
            except OSError:
                continue
            found += kids
            todo += kids
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
