"""Ctrl-C once parks at the next safe point, twice stops at once; both can be resumed. Time and turn limits end a run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from main_job import (
    PATIENCE_S,
    POLICY,
    Cli,
    Source,
    do_args,
    finish,
    git,
    leftovers,
    log_lines,
    repeated_calls,
    script,
    small_repository,
)

SLOW = """
def work(call, name):
    answer = base.work(call, name)
    return sleep_s({seconds}, then=answer) if call.turn == 1 and call.agent.startswith("round-0/") else answer
"""
SLOW_COMMAND = """
def work(call, name):
    if call.turn == 0 and call.agent.startswith("round-0/"):
        return tool("run_command", command="sleep {seconds}")
    return base.work(call, name)
"""


def wait_for(cli: Cli, process: subprocess.Popen[str], calls: int) -> None:
    """Until the script has answered ``calls`` calls."""
    deadline = time.monotonic() + PATIENCE_S
    while len(log_lines(cli.script_log)) < calls:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


def test_ctrl_c_parks_at_the_next_safe_point(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    process = cli.start(*do_args(repo, script(tmp_path, SLOW.format(seconds=3))), "--yes")
    wait_for(cli, process, 3)
    os.kill(process.pid, signal.SIGINT)
    done = finish(process)
    assert done.code == 130, done
    assert done.json["state"] == "parked"
    assert f"capataz resume {done.run_id}" in done.err
    assert leftovers(home) == []
    assert Source.of(repo) == before
    again = cli.run("resume", str(done.run_id), "--json")
    assert again.code == 0 and again.json["outcome"] == "promoted", again
    assert repeated_calls(log_lines(cli.script_log)) == 0 == again.json["usage"]["repeated_model_calls"]
    assert git(repo, "rev-parse", "main") == again.json["candidate"]["sha"]
    assert leftovers(home) == []


def test_ctrl_c_twice_stops_at_once_and_can_be_resumed(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    process = cli.start(*do_args(repo, script(tmp_path, SLOW_COMMAND.format(seconds=8))), "--yes")
    wait_for(cli, process, 3)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:
        if "Ctrl-C again stops at once" in line:
            break
    asked = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    done = finish(process)
    assert time.monotonic() - asked < 60
    assert done.code == 130, done
    assert "capataz resume" in done.err
    left = [item for item in leftovers(home) if not item.startswith("workspace")]
    assert left == []
    run_id = cli.runs()[0]["run_id"]
    again = cli.run("resume", run_id, "--json")
    assert again.code == 0 and again.json["outcome"] == "promoted", again
    assert leftovers(home) == []


def test_the_terminal_s_signal_reaches_the_whole_group(cli: Cli, home: Path, tmp_path: Path) -> None:
    """A terminal sends SIGINT to every process of the foreground group, the program's and the sandboxes' too."""
    repo = small_repository(tmp_path / "repo")
    process = cli.start(*do_args(repo, script(tmp_path, SLOW.format(seconds=3))), "--yes")
    wait_for(cli, process, 3)
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process)
    assert done.code == 130 and done.json["state"] == "parked", done
    again = cli.run("resume", str(done.run_id), "--json")
    assert again.code == 0 and again.json["outcome"] == "promoted", again
    assert leftovers(home) == []


def test_a_time_limit_ends_the_run(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    done = cli.do(repo, "--yes", "--timeout", "2s", script=script(tmp_path, SLOW_COMMAND.format(seconds=100)))
    assert done.code == 1, done
    assert done.json["reason"]["code"] == "deadline_exceeded"
    assert leftovers(home) == []
    assert Source.of(repo) == before


def test_turns_run_out(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes", "--max-turns", "2", "--max-rounds", "1")
    assert done.code == 1, done
    assert done.json["reason"]["code"] == "turns_exhausted"
    assert {w["status"] for w in done.json["rounds"][0]["workers"]} == {"failed"}


def test_a_model_that_costs_nothing_fits_any_money_limit(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes", "--budget-usd", "0.01")
    assert done.code == 0 and done.json["usage"]["usd"] == "0.00", done


def test_a_money_limit_ends_the_run(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY + "[models.scripted]\nprices = { input = 100, output = 1 }\n")
    done = cli.do(repo, "--yes", "--policy", str(policy), "--budget-usd", "0.50")
    assert done.code == 1, done
    assert done.json["reason"]["code"] == "budget_exhausted"
    assert 0 < float(done.json["usage"]["usd"]) <= 0.50
    assert leftovers(home) == []
    assert Source.of(repo) == before


def test_a_model_without_a_price_is_refused_under_a_money_limit(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY + '[models.mine]\nbase_url = "http://127.0.0.1:9/v1"\n')
    args = ("do", "Add mul", "--repo", str(repo), "--model", "mine/unheard-of", "--policy", str(policy), "--yes", "--json")
    done = cli.run(*args, "--budget-usd", "5")
    assert done.code == 1, done
    assert done.json["reason"]["code"] == "unknown_price" and done.json["usage"]["model_calls"] == 0


def test_cancel_from_another_shell_kills_and_cleans_up(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    process = cli.start(*do_args(repo, script(tmp_path, SLOW_COMMAND.format(seconds=200))), "--yes")
    wait_for(cli, process, 3)
    run_id = cli.runs()[0]["run_id"]
    cancelled = cli.run("cancel", run_id, "--reason", "wrong branch", "--json")
    assert cancelled.json["state"] == "cancelled", cancelled
    done = finish(process)
    assert done.code == 130, done
    assert done.json["outcome"] == "cancelled" and "wrong branch" in done.json["reason"]["message"]
    assert leftovers(home) == []
    assert Source.of(repo) == before
