"""The JSON of ``do``, ``show``, ``ps`` and the others: exact keys and kinds, whatever became of the run (CLI.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from main_job import Cli, git, script, small_repository

HEX40, HEX64 = r"[0-9a-f]{40}", r"[0-9a-f]{64}"
RUN = {
    "run_id", "program", "state", "outcome", "reason", "rounds", "candidate", "suites", "digests", "approval", "promotion", "result",
    "usage", "orphans", "sandbox",
}
ROUND = {"round", "plan", "workers", "candidate", "suites", "synthesis", "reviews", "failures", "passed"}
WORKER = {"task_id", "status", "changed_files", "turns", "summary", "unresolved_risks", "reason"}
CANDIDATE = {"id", "sha", "tree", "base_sha", "original_base_sha", "changed_files"}
SUITE = {"id", "command", "exit_code", "duration_s", "artifact"}
REASON = {"code", "message", "round", "task"}
USAGE = {
    "usd": str, "input_tokens": int, "output_tokens": int, "model_calls": int, "repeated_model_calls": int, "tool_calls": int,
    "sandbox_s": float, "wall_s": float, "download_bytes": int, "artifact_bytes": int,
}
BOUND = {"candidate_id", "candidate_sha", "test_report_digest", "evidence_digest"}
SYNTHESIS = BOUND | {"summary", "acceptance_evidence", "unresolved_risks"}
REVIEW = BOUND | {"candidate_passed", "blocking_issues", "evidence"}
READ_ONLY = """
def plan(data):
    one = {"id": "look", "objective": "Look", "read_only": True, "write_globs": [], "additional_suite_ids": []}
    return submit(substantive=False, reason="a question", success_criteria=data["immutable_success_criteria"], tasks=[one])

def work(call, name):
    if call.turn == 0:
        return tool("read_file", path="calc.py")
    return submit(status="completed", summary="add stands in calc.py", unresolved_risks=["none seen"])
"""


def check_run(run: dict[str, Any]) -> None:
    assert set(run) == RUN
    assert re.fullmatch(r"[a-z0-9]+", run["run_id"]) and run["program"] == "ultracode"
    assert run["outcome"] in ("promoted", "report", "failed", "declined", "cancelled", None)
    assert run["reason"] is None or set(run["reason"]) == REASON
    for round_ in run["rounds"]:
        check_round(round_)
    check_candidate(run["candidate"])
    for suite in run["suites"]:
        check_suite(suite)
    assert set(run["digests"]) == {"diff", "test_report", "evidence", "envelope"}
    assert all(d is None or re.fullmatch(HEX64, d) for d in run["digests"].values())
    assert {name: type(run["usage"][name]) for name in USAGE} == USAGE and set(run["usage"]) == set(USAGE)
    assert re.fullmatch(r"\d+\.\d\d+", run["usage"]["usd"])
    assert run["orphans"] == [] and set(run["sandbox"]) == {"backend", "enforces"}


def check_round(round_: dict[str, Any]) -> None:
    assert set(round_) == ROUND
    assert set(round_["reviews"]) == {"verifier", "refuter"}
    assert set(round_["plan"]) == {"substantive", "reason", "success_criteria", "tasks"}
    for worker in round_["workers"]:
        assert set(worker) == WORKER
    check_candidate(round_["candidate"])
    for suite in round_["suites"]:
        check_suite(suite)
    for failure in round_["failures"]:
        assert set(failure) == {"task", "code", "message"}


def check_candidate(candidate: dict[str, Any] | None) -> None:
    if candidate is not None:
        assert set(candidate) == CANDIDATE
        assert all(re.fullmatch(HEX40, candidate[k]) for k in ("sha", "tree", "base_sha", "original_base_sha"))


def check_suite(suite: dict[str, Any]) -> None:
    assert set(suite) == SUITE
    assert suite["artifact"].startswith("blob:") and type(suite["exit_code"]) is int and type(suite["duration_s"]) is float


def test_a_promoted_run(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes")
    run = done.json
    check_run(run)
    assert run == cli.json("show", run["run_id"])
    assert (run["state"], run["outcome"], run["reason"]) == ("completed", "promoted", None)
    assert [(r["round"], r["passed"]) for r in run["rounds"]] == [(0, False), (1, True)]
    first, second = run["rounds"]
    assert [w["task_id"] for w in first["workers"]] == ["mul", "check"] and [w["turns"] for w in first["workers"]] == [3, 3]
    assert first["suites"][0]["exit_code"] != 0 and second["suites"][0]["exit_code"] == 0
    assert set(second["synthesis"]) == SYNTHESIS and run["result"] == second["synthesis"]
    for review in second["reviews"].values():
        assert set(review) == REVIEW
    assert second["candidate"]["base_sha"] == first["candidate"]["sha"]
    assert run["candidate"] == second["candidate"] and run["suites"] == second["suites"]
    assert set(run["approval"]) == {"decision", "by", "channel", "at"}
    assert run["promotion"] == {"ref": "refs/heads/main", "old": run["candidate"]["original_base_sha"], "new": run["candidate"]["sha"]}
    assert git(repo, "rev-parse", "main") == run["candidate"]["sha"]
    assert run["digests"]["test_report"] == run["result"]["test_report_digest"]
    assert run["usage"]["model_calls"] == 17 and run["usage"]["tool_calls"] == 6 and run["usage"]["input_tokens"] == 17_000
    assert run["usage"]["wall_s"] > 0 < run["usage"]["sandbox_s"]
    assert run["sandbox"]["backend"] == "bubblewrap" and run["sandbox"]["enforces"]
    for other in (["diff"], ["tree"], ["logs", "unit"]):
        verb, *more = other
        assert cli.json(verb, run["run_id"], *more)["run_id"] == run["run_id"]


def test_a_parked_run(cli: Cli, tmp_path: Path) -> None:
    done = cli.do(small_repository(tmp_path / "repo"))
    assert done.code == 0, done
    run = done.json
    check_run(run)
    assert run == {**cli.json("show", run["run_id"]), "usage": run["usage"]}
    assert (run["state"], run["outcome"], run["reason"], run["result"]) == ("parked", None, None, None)
    assert run["approval"] is None and run["promotion"] is None
    assert run["rounds"][-1]["passed"] and all(run["digests"].values())


def test_a_failed_run(cli: Cli, tmp_path: Path) -> None:
    done = cli.do(small_repository(tmp_path / "repo"), "--yes", "--max-rounds", "1")
    assert done.code == 1, done
    run = done.json
    check_run(run)
    assert run == cli.json("show", run["run_id"])
    assert (run["state"], run["outcome"]) == ("failed", "failed")
    assert run["reason"] == {"code": "required_suite_failed", "message": run["reason"]["message"], "round": 0, "task": None}
    assert "unit" in run["reason"]["message"] and len(run["rounds"]) == 1
    assert run["approval"] is None and run["promotion"] is None


def test_a_report(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, script=script(tmp_path, READ_ONLY))
    assert done.code == 0, done
    run = done.json
    check_run(run)
    assert run == cli.json("show", run["run_id"])
    assert (run["state"], run["outcome"], run["reason"], run["candidate"]) == ("completed", "report", None, None)
    assert run["result"]["summary"] == "add stands in calc.py" and run["result"]["unresolved_risks"] == ["none seen"]
    assert "add stands in calc.py" in cli.run("show", run["run_id"]).out
    assert run["suites"] == [] and run["promotion"] is None


def test_a_run_that_failed_before_its_first_round(cli: Cli, tmp_path: Path) -> None:
    done = cli.do(small_repository(tmp_path / "repo"), script=script(tmp_path, "def plan(data):\n    return fail(401)\n"))
    assert done.code == 3, done
    run = done.json
    assert set(run) == RUN and run["rounds"] == []
    assert run["reason"]["code"] == "provider_rejected" and set(run["reason"]) == REASON


def test_ps_lists_newest_first(cli: Cli, tmp_path: Path) -> None:
    done = cli.do(small_repository(tmp_path / "repo"), "--no-promote")
    out = cli.run("ps", "--json").out
    assert out.count("\n") == 1
    runs = json.loads(out)["runs"]
    assert set(runs[0]) == {"run_id", "program", "state", "outcome", "started"}
    assert runs[0]["run_id"] == done.run_id and runs[0]["outcome"] == "report"
    assert [r["started"] for r in runs] == sorted((r["started"] for r in runs), reverse=True)
    assert len(cli.json("ps", "--limit", "1")["runs"]) == 1


WRONG = {
    "no repository": (["do", "x", "--repo", "{tmp}"], 64),
    "no folder": (["do", "x", "--repo", "{tmp}/none"], 64),
    "no script": (["do", "x", "--repo", "{repo}", "--model", "scripted:none.py"], 64),
    "no model": (["do", "x", "--repo", "{repo}", "--model", "nobody/nothing"], 64),
    "no request": (["do", " ", "--repo", "{repo}"], 64),
    "no number": (["do", "x", "--repo", "{repo}", "--max-rounds", "9"], 64),
    "no duration": (["do", "x", "--repo", "{repo}", "--timeout", "soon"], 64),
    "no revision": (["do", "x", "--repo", "{repo}", "--base", "v99", "--model", "{script}"], 64),
    "two ways to end": (["do", "x", "--repo", "{repo}", "--yes", "--no-promote"], 64),
    "no program": (["do", "x", "--repo", "{repo}", "--program", "ultra", "--model", "{script}"], 64),
    "no run": (["show", "r000"], 64),
    "no run to resume": (["resume", "r000"], 64),
    "no question": (["answer", "a000", "approve"], 64),
    "no verb": (["dance"], 64),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_clear_line(cli: Cli, tmp_path: Path, name: str) -> None:
    repo = small_repository(tmp_path / "repo")
    args, code = WRONG[name]
    given = [a.format(tmp=tmp_path, repo=repo, script=f"scripted:{script(tmp_path)}") for a in args]
    done = cli.run(*given, "--json")
    assert done.code == code, done
    assert len(done.err.splitlines()) == 1 and "Traceback" not in done.err, done.err
    assert set(done.json) == {"error"} and set(done.json["error"]) == {"code", "message"}
