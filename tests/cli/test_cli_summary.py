"""``show --json``: exact fields, from journal rows alone, at every stage of a run."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from cli_fakes import ask_record, effect, run_record

from capataz.contracts.canonical import digest
from capataz.contracts.journal import EffectRow, Usage
from capataz.wiring.summary import dollars, summarise

TOP = [
    "run_id", "program", "state", "outcome", "reason", "rounds", "candidate", "suites", "digests", "approval", "promotion", "result", "usage",
    "orphans", "sandbox",
]  # fmt: skip
USAGE = [
    "usd", "input_tokens", "output_tokens", "model_calls", "repeated_model_calls", "tool_calls", "sandbox_s", "wall_s", "download_bytes",
    "artifact_bytes",
]  # fmt: skip
CANDIDATE = {
    "id": "c1", "sha": "s" * 40, "tree": "t" * 40, "base_sha": "b" * 40, "original_base_sha": "o" * 40, "round": 0,
    "changed_files": ["a.py", {"b64": "/w=="}], "diff_uri": "blob:" + "d" * 64,
}  # fmt: skip
SUITE = {"id": "unit", "command": "make", "exit_code": 1, "duration": 0.5, "artifact_uri": "blob:l", "passed": False}
REPORT = {"suites": [SUITE], "passed": False, "digest": "r" * 64, "sandbox": {"backend": "bubblewrap", "enforces": ["network"], "tools": {}}}
ENVELOPE = {"passed": False, "candidate_id": "c1"}


def show(rows: list[EffectRow] | None = None, **changes: Any) -> dict[str, Any]:
    asks = changes.pop("asks", [])
    return summarise(run_record(**changes), rows or [], asks, Usage(usd=Decimal("1.5"), model_calls=3), now=1_700_000_011.0)


def round_rows(scope: str = "round-0") -> list[EffectRow]:
    item = f"{scope}/~one:a"
    return [
        effect("agent", "planner", result={"output": {}, "turns": 2}),
        effect("coding.plan_check", scope=scope, result={"plan": {"tasks": [{"id": "a"}, {"id": "b"}]}, "differences": [], "globs": {}}),
        effect("agent", "worker:b", scope=f"{scope}/~one:b", status="error", error={"code": "agent_stuck", "message": "again", "details": {"turns": 9}}),
        effect("agent", "worker:a", scope=item, result={"output": {"status": "completed", "summary": "did", "unresolved_risks": ["r"]}, "turns": 4}),
        effect("coding.freeze", "a", scope=item, input={"item": {"id": "a"}}, result={"changed_files": ["a.py"], "output": {}}),
    ]


def judged_rows(scope: str = "round-0") -> list[EffectRow]:
    return [
        effect("coding.compose", scope=scope, result=CANDIDATE),
        effect("coding.test", scope=scope, result=REPORT),
        effect("coding.manifest", scope=scope, result={"digest": "e" * 64}),
        effect("agent", "reducer", scope=scope, result={"output": {"summary": "s"}, "turns": 1}),
        effect("agent", "verifier", scope=f"{scope}/~reviewed:verifier", result={"output": {"candidate_passed": True}, "turns": 1}),
        effect("coding.envelope", scope=scope, result=ENVELOPE),
    ]


def test_a_fresh_run_has_every_field_in_order() -> None:
    found = show(started_at=None)
    assert list(found) == TOP and list(found["usage"]) == USAGE
    assert (found["rounds"], found["suites"], found["orphans"]) == ([], [], [])
    assert found["candidate"] is found["approval"] is found["promotion"] is found["reason"] is found["outcome"] is None
    assert found["digests"] == {"diff": None, "test_report": None, "evidence": None, "envelope": None}
    assert found["usage"]["usd"] == "1.50" and found["usage"]["wall_s"] == 0.0


def test_workers_are_told_in_the_plans_order_with_reasons() -> None:
    [first] = show(round_rows())["rounds"]
    a, b = first["workers"]
    assert a == {
        "task_id": "a", "status": "completed", "changed_files": ["a.py"], "turns": 4, "summary": "did", "unresolved_risks": ["r"], "reason": None,
    }  # fmt: skip
    assert (b["task_id"], b["status"], b["turns"], b["reason"]) == ("b", "failed", 9, {"code": "agent_stuck", "message": "again"})
    assert first["failures"] == [{"task": "b", "code": "agent_stuck", "message": "again"}]
    assert (first["round"], first["passed"], first["candidate"], first["synthesis"]) == (0, False, None, None)
    assert first["reviews"] == {"verifier": None, "refuter": None}


def test_a_refused_freeze_and_a_blocked_worker() -> None:
    rows = [
        effect("coding.plan_check", scope="round-0", result={"plan": {"tasks": []}}),
        effect("agent", "worker:a", scope="round-0", result={"output": {"status": "completed", "summary": "x"}}),
        effect("coding.freeze", "a", scope="round-0", status="error", input={"item": {"id": "a"}}, error={"code": "link_escape", "message": "ln"}),
        effect("agent", "worker:b", scope="round-0", result={"output": {"status": "blocked", "summary": "no key"}}),
        effect("agent", "worker:c", scope="round-0", status="requested"),
    ]
    a, b, c = show(rows)["rounds"][0]["workers"]
    assert (a["status"], a["reason"]) == ("refused", {"code": "link_escape", "message": "ln"})
    assert (b["status"], b["reason"]) == ("blocked", {"code": "agent_blocked", "message": "no key"})
    assert (c["status"], c["turns"]) == ("running", 0)


def test_candidate_suites_digests_and_sandbox() -> None:
    found = show(round_rows() + judged_rows())
    names = ["id", "sha", "tree", "base_sha", "original_base_sha", "changed_files"]
    assert list(found["candidate"]) == names and found["candidate"] == {name: CANDIDATE[name] for name in names}
    assert found["suites"] == [{"id": "unit", "command": "make", "exit_code": 1, "duration_s": 0.5, "artifact": "blob:l"}]
    assert found["digests"] == {"diff": "d" * 64, "test_report": "r" * 64, "evidence": "e" * 64, "envelope": digest(ENVELOPE)}
    assert found["sandbox"] == {"backend": "bubblewrap", "enforces": ["network"]}
    assert found["rounds"][0]["reviews"] == {"verifier": {"candidate_passed": True}, "refuter": None}


def test_the_programs_own_end_of_a_round_wins() -> None:
    failures = [{"task": None, "code": "required_suite_failed", "message": "m"}]
    end = effect("checkpoint", scope="round-0", input={"message": "x", "data": {"round": 0, "passed": False, "failures": failures}})
    passed = effect("checkpoint", scope="round-1", input={"message": "x", "data": {"round": 1, "passed": True, "failures": []}})
    first, second = show([*round_rows(), end, *round_rows("round-1")[1:], passed])["rounds"]
    assert (first["failures"], first["passed"]) == (failures, False)
    assert (second["round"], second["passed"], second["failures"]) == (1, True, [])


def test_the_last_candidate_is_shown_when_a_later_round_made_none() -> None:
    found = show(round_rows() + judged_rows() + round_rows("round-1")[1:])
    assert found["candidate"]["id"] == "c1" and len(found["rounds"]) == 2


def test_approval_of_a_person_and_of_policy() -> None:
    asked = ask_record(answer={"value": "decline"}, answered_by="ana", answered_at=1_700_000_005.0, answer_channel="cli")
    assert show(asks=[asked])["approval"] == {"decision": "decline", "by": "ana", "channel": "cli", "at": "2023-11-14T22:13:25+00:00"}
    given = {"value": "approve", "by": "policy", "channel": "policy", "at": "2026-01-01T00:00:00+00:00", "note": None}
    promote = effect("coding.promote", input={"approval": given}, result={"ref": "refs/heads/main", "old": None, "new": "n", "note": "x"})
    found = show([promote])
    assert found["approval"] == {"decision": "approve", "by": "policy", "channel": "policy", "at": "2026-01-01T00:00:00+00:00"}
    assert found["promotion"] == {"ref": "refs/heads/main", "old": None, "new": "n"}


@pytest.mark.parametrize(
    ("reason", "place"),
    [
        ({"code": "c", "message": "m"}, (None, None)),
        ({"code": "c", "message": "m", "round": 1, "task": "a"}, (1, "a")),
        ({"code": "c", "message": "m", "effect": "round-2/~one:a/agent:worker:a#0.0", "run_id": "r"}, (2, None)),
    ],
)
def test_a_reason_has_exactly_four_fields(reason: dict[str, Any], place: tuple[Any, Any]) -> None:
    found = show(state="failed", outcome="failed", reason=reason)["reason"]
    assert list(found) == ["code", "message", "round", "task"]
    assert (found["round"], found["task"]) == place


def test_another_program_has_no_rounds() -> None:
    rows = [effect("agent", "worker:x", scope="round-1"), effect("step", "s", scope="round-1"), effect("checkpoint", input={"data": 3})]
    found = show(rows, program="mine.py:flow", state="completed", outcome="completed", result=[1])
    assert (found["rounds"], found["candidate"], found["result"]) == ([], None, [1])


@pytest.mark.parametrize(
    ("amount", "text"), [("0", "0.00"), ("0E-9", "0.00"), ("1.5", "1.50"), ("10", "10.00"), ("0.000123", "0.000123"), ("1E+3", "1000.00")]
)
def test_dollars_keep_every_digit(amount: str, text: str) -> None:
    assert dollars(Decimal(amount)) == text
