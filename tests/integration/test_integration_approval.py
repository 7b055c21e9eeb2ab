"""The gate: who decided, what a decision does, and that it does it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from main_job import Cli, Outcome, Source, finish, git, leftovers, small_repository


def parked(cli: Cli, repo: Path) -> tuple[dict[str, Any], str]:
    """A job that waits for its approval, and the id of the question."""
    done = cli.do(repo)
    assert done.code == 0, done
    shown = done.json
    assert (shown["state"], shown["outcome"], shown["approval"]) == ("parked", None, None)
    asks = [ask for ask in cli.json("asks", "--run", shown["run_id"])["asks"]]
    assert len(asks) == 1
    assert f"capataz answer {asks[0]['ask_id']} approve\n" in done.err
    return shown, asks[0]["ask_id"]


def test_yes_is_recorded_as_policy(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    shown = cli.do(repo, "--yes").json
    assert shown["outcome"] == "promoted"
    assert {k: shown["approval"][k] for k in ("decision", "by", "channel")} == {"decision": "approve", "by": "policy", "channel": "policy"}
    assert shown["promotion"]["old"] == shown["candidate"]["original_base_sha"]
    assert shown["promotion"]["ref"] == "refs/heads/main"
    assert (
        shown["promotion"]["new"] == shown["candidate"]["sha"] == git(repo, "rev-parse", "main")
    )
    after = Source.of(repo)
    assert (after.config, after.head) == (before.config, before.head)
    assert git(repo, "status", "--porcelain") == ""
    assert set(after.files) - set(before.files) == {b"mul.py".hex()}


def test_a_parked_job_is_approved_once_by_two_answers(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    shown, ask = parked(cli, repo)
    assert Source.of(repo) == before
    assert leftovers(home) == [] or all("workspace" in left for left in leftovers(home))
    answers = [cli.start("answer", ask, "approve", "--json") for _ in range(2)]
    done: list[Outcome] = [finish(p) for p in answers]
    assert 0 in [d.code for d in done], done
    for one in done:
        assert one.code in (0, 64), one
        if one.code == 64:
            assert one.json["error"]["code"] in ("already_answered", "run_not_resumable"), one
    final = cli.json("show", shown["run_id"])
    assert final["outcome"] == "promoted"
    assert final["candidate"]["sha"] == shown["candidate"]["sha"] == git(repo, "rev-parse", "main")
    assert git(repo, "reflog", "show", "main").count("capataz: promote") == 1
    assert final["approval"]["decision"] == "approve" and final["approval"]["channel"] == "cli"
    events = cli.run("events", shown["run_id"], "--json").out
    assert events.count('"promotion.done"') == 1
    assert leftovers(home) == []


def test_a_message_to_an_agent_that_is_not_at_work_is_refused(cli: Cli, tmp_path: Path) -> None:
    shown, _ = parked(cli, small_repository(tmp_path / "repo"))
    assert f"{shown['run_id']}  ultracode  parked: asks" in cli.run("ps").out
    for verb in (("notify", shown["run_id"], "Use tabs"), ("pause", shown["run_id"])):
        nobody = cli.run(*verb, "--agent", "round-0/worker:nobody")
        assert (nobody.code, nobody.err.count("\n")) == (64, 1), nobody
        assert f"run {shown['run_id']} has no agent 'round-0/worker:nobody'; at work: none" in nobody.err
        assert "agent 'planner' of run" in cli.run(*verb, "--agent", "planner").err


def test_two_different_answers_have_one_outcome(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    shown, ask = parked(cli, repo)
    base = git(repo, "rev-parse", "main")
    answers = {value: cli.start("answer", ask, value, "--json") for value in ("approve", "decline")}
    done = {value: finish(process) for value, process in answers.items()}
    final = cli.json("show", shown["run_id"])
    decision = final["approval"]["decision"]
    other = {"approve": "decline", "decline": "approve"}[decision]
    assert done[other].code == 64, done
    assert final["outcome"] == {"approve": "promoted", "decline": "declined"}[decision]
    assert git(repo, "rev-parse", "main") == (shown["candidate"]["sha"] if decision == "approve" else base)
    assert done[decision].code == {"approve": 0, "decline": 2}[decision], done


def test_decline_ends_with_two_and_touches_nothing(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    shown, ask = parked(cli, repo)
    done = cli.run("answer", ask, "decline", "--note", "not now", "--json")
    assert done.code == 2, done
    assert done.json["outcome"] == "declined" and done.json["reason"]["code"] == "ask_declined"
    assert "not now" in done.json["reason"]["message"]
    assert Source.of(repo) == before
    again = cli.run("answer", ask, "approve", "--json")
    assert again.code == 64 and again.json["error"]["code"] == "already_answered"
    assert cli.run("resume", shown["run_id"], "--json").code == 2
    assert Source.of(repo) == before
    assert leftovers(home) == []


def test_an_answer_after_the_target_moved_writes_nothing(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    _, ask = parked(cli, repo)
    (repo / "other.txt").write_text("meanwhile\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "meanwhile")
    before = Source.of(repo)
    done = cli.run("answer", ask, "approve", "--json")
    assert done.code == 1, done
    assert (done.json["outcome"], done.json["reason"]["code"]) == ("failed", "target_moved")
    assert done.json["promotion"] is None
    assert Source.of(repo) == before
    assert leftovers(home) == []


def test_resume_of_a_parked_job_parks_again(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    shown, ask = parked(cli, repo)
    again = cli.run("resume", shown["run_id"], "--json")
    assert (again.code, again.json["state"]) == (0, "parked"), again
    assert [a["ask_id"] for a in cli.json("asks", "--run", shown["run_id"])["asks"]] == [ask]
    assert again.json["usage"]["model_calls"] == shown["usage"]["model_calls"]
    cancelled = cli.run("cancel", shown["run_id"], "--json")
    assert cancelled.json["state"] == "cancelled", cancelled


@pytest.mark.parametrize("value", ["maybe", "", "APPROVE"])
def test_a_word_that_is_no_answer_decides_nothing(cli: Cli, tmp_path: Path, value: str) -> None:
    done = cli.run("answer", "a000000000000000", value, "--json")
    assert done.code == 64 and done.json["error"]["code"] in ("not_found", "usage_error"), done


def test_no_promote_ends_in_a_report(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    done = cli.do(repo, "--no-promote")
    assert done.code == 0, done
    assert (done.json["outcome"], done.json["approval"], done.json["promotion"]) == ("report", None, None)
    assert done.json["rounds"][-1]["passed"]
    assert Source.of(repo) == before
