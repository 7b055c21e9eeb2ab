"""Ultracode's course: who is asked, with what, in which order, and how each ending is reached."""

from __future__ import annotations

from typing import Any

import pytest
from programs_kernel import FakeKernel, done, job, plan, task

from capataz.contracts.errors import (
    AgentStuck,
    BudgetExhausted,
    CapatazError,
    ForbiddenAccess,
    NoSuites,
    OutputInvalid,
    OverlappingScopes,
    ProviderRejected,
    ReviewNotBound,
    ScopeViolation,
    ScriptError,
    TargetMoved,
    TurnsExhausted,
)
from capataz.programs.ultracode import ultracode

TWO = plan(task("a", ["a"]), task("b", ["b"]))


def two_workers(**agents: Any) -> FakeKernel:
    kernel = FakeKernel({"planner": TWO, "worker:a": done(), "worker:b": done(), **agents})
    kernel.files = {"round-0/worker:a": {"a": "1"}, "round-0/worker:b": {"b": "1"}}
    return kernel


def repaired(**agents: Any) -> FakeKernel:
    """Round 0 fails its suite; round 1's one task mends it."""
    kernel = two_workers(**{"round-1/planner": plan(task("a", ["a"])), **agents})
    kernel.passes = lambda tree: tree.get("a") == "2"
    kernel.files["round-1/worker:a"] = {"a": "2"}
    return kernel


def test_the_straight_way_is_promoted() -> None:
    kernel = two_workers()
    outcome = kernel.play(ultracode, job())
    assert (outcome.outcome, outcome.reason, outcome.rounds) == ("promoted", None, 1)
    assert kernel.names() == [
        "planner", "round-0/worker:a", "round-0/worker:b", "round-0/reducer", "round-0/verifier", "round-0/refuter",
    ]  # fmt: skip
    assert outcome.result is not None and outcome.result.summary == "a summary"
    [ask] = kernel.kinds("ask")
    [promote] = kernel.kinds("coding.promote")
    assert ask["input"]["binding"] == outcome.envelope_digest == promote["input"]["approval"]["binding"]
    assert (promote["input"]["approval"]["value"], promote["input"]["approval"]["by"]) == ("approve", "ana")
    assert {"plan", "diff", "suites", "reviews", "usage", "risks", "target"} <= set(ask["input"]["context"])
    assert ask["input"]["context"]["risks"] == ["slow"]


def test_each_agent_gets_exactly_its_fields() -> None:
    kernel = repaired()
    assert kernel.play(ultracode, job()).outcome == "promoted"
    evidence = {"success_criteria", "candidate", "test_report", "evidence"}
    first = {"request", "immutable_success_criteria", "required_suite_ids"}
    made = {"failures", "candidate", "test_report", "evidence", "synthesis", "reviews", "instruction"}
    assert set(kernel.data("planner")) == first
    assert set(kernel.data("round-1/planner")) == first | made
    assert set(kernel.data("round-0/worker:a")) == {"objective", "success_criteria", "write_globs", "additional_suite_ids", "feedback"}
    assert set(kernel.data("round-0/reducer")) == evidence | {"worker_records"}
    assert set(kernel.data("round-0/verifier")) == set(kernel.data("round-0/refuter")) == evidence | {"synthesis"}
    assert kernel.data("round-0/worker:a")["feedback"] is None
    assert kernel.data("round-1/worker:a")["feedback"]["test_log"] == "the log"
    assert kernel.data("planner")["required_suite_ids"] == ["unit"]


def test_a_repair_builds_on_the_candidate() -> None:
    kernel = repaired()
    outcome = kernel.play(ultracode, job())
    first, second = kernel.kinds("coding.compose")
    assert first["input"]["base_sha"] == "base"
    assert second["input"]["base_sha"] == kernel.data("round-0/reducer")["candidate"]["sha"]
    assert outcome.promotion is not None
    assert kernel.trees[outcome.promotion.new] == {"a": "2", "b": "1"}
    assert kernel.data("round-1/planner")["failures"] == [
        {"task": None, "code": "required_suite_failed", "message": "suite unit failed: exit code 1"},
        {"task": None, "code": "review_rejected", "message": "the verifier rejects the candidate: suite fails"},
        {"task": None, "code": "review_rejected", "message": "the refuter rejects the candidate: suite fails"},
    ]


def test_workers_that_finish_in_any_order_give_one_candidate() -> None:
    four = plan(*(task(name, [name]) for name in "abcd"))
    shas = set()
    for seed in range(12):
        kernel = FakeKernel({"planner": four, **{f"worker:{name}": done() for name in "abcd"}}, seed=seed)
        kernel.files = {f"round-0/worker:{name}": {name: "1"} for name in "abcd"}
        shas.add(kernel.play(ultracode, job()).promotion)
    assert len(shas) == 1


@pytest.mark.parametrize(
    "error",
    [AgentStuck("again"), TurnsExhausted("40"), OutputInvalid("junk"), ForbiddenAccess("thrice")],
)
def test_a_worker_that_fails_costs_the_round(error: CapatazError) -> None:
    kernel = repaired(**{"round-0/worker:b": error})
    kernel.agents["round-1/planner"] = TWO
    kernel.files |= {"round-1/worker:a": {"a": "2"}, "round-1/worker:b": {"b": "1"}}
    assert kernel.play(ultracode, job()).outcome == "promoted"
    assert kernel.data("round-1/planner")["failures"] == [{"task": "b", "code": error.code, "message": str(error)}]
    nulls = {name for name, value in kernel.data("round-1/planner").items() if value is None}
    assert nulls == {"candidate", "test_report", "evidence", "synthesis", "reviews"}
    assert [r["input"]["base_sha"] for r in kernel.kinds("coding.compose")] == ["base"]


def test_a_blocked_worker_fails_the_run_in_the_end_with_the_last_rounds_reason() -> None:
    kernel = two_workers(**{"worker:b": done("I need a key", "blocked")})
    outcome = kernel.play(ultracode, job(max_rounds=2))
    assert outcome.outcome == "failed" and outcome.rounds == 2
    assert outcome.reason is not None
    assert (outcome.reason.code, outcome.reason.round, outcome.reason.task) == ("agent_blocked", 1, "b")
    assert "I need a key" in outcome.reason.message
    assert len([n for n in kernel.names() if n.endswith("planner")]) == 2


def test_a_refusal_at_the_freeze_costs_the_round() -> None:
    kernel = two_workers()
    kernel.errors["coding.freeze"] = ScopeViolation("wrote c", paths=["c"])
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None and (outcome.reason.code, outcome.reason.task) == ("scope_violation", "a")
    assert outcome.rounds == 3 and kernel.kinds("coding.compose") == []


@pytest.mark.parametrize("error", [ProviderRejected("bad key"), BudgetExhausted("no rest"), ScriptError("no answer")])
def test_what_no_repair_can_mend_ends_the_run_at_once(error: CapatazError) -> None:
    kernel = two_workers(**{"round-0/worker:b": error})
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None
    assert (outcome.outcome, outcome.reason.code, outcome.reason.round, outcome.rounds) == ("failed", error.code, 0, 1)
    assert outcome.reason.task == "b"
    assert kernel.names().count("planner") == 1


@pytest.mark.parametrize("who", ["round-0/verifier", "round-0/refuter", "round-0/reducer"])
def test_a_reviewer_that_is_not_bound_ends_the_run(who: str) -> None:
    kernel = two_workers(**{who: ReviewNotBound("names another candidate")})
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None
    assert (outcome.outcome, outcome.reason.code, outcome.rounds) == ("failed", "review_not_bound", 1)
    assert kernel.kinds("ask") == kernel.kinds("coding.promote") == []


def test_passed_with_blocking_issues_is_invalid() -> None:
    kernel = two_workers()
    kernel.agents["verifier"] = lambda r: {**kernel._bound(r), "candidate_passed": True, "blocking_issues": ["x"], "evidence": []}
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None and outcome.reason.code == "review_invalid"
    assert kernel.kinds("coding.promote") == []


@pytest.mark.parametrize("where", ["planner", "check"])
def test_overlapping_scopes_end_the_run_before_any_worker(where: str) -> None:
    kernel = two_workers()
    kernel.agents["planner"] = OverlappingScopes("a and b") if where == "planner" else plan(task("a", ["x"]), task("b", ["x"]))
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None and outcome.reason.code == "overlapping_scopes"
    assert [name for name in kernel.names() if "worker" in name] == []


def test_weakened_criteria_change_nothing_and_are_told() -> None:
    kernel = two_workers(planner={**TWO, "success_criteria": ["anything goes"]})
    assert kernel.play(ultracode, job()).outcome == "promoted"
    for name in ("round-0/worker:a", "round-0/verifier", "round-0/reducer"):
        assert kernel.data(name)["success_criteria"] == ["it works"]
    assert kernel.kinds("checkpoint")[0]["input"]["data"] == {"differences": ["the planner changed the criteria"]}


def test_suites_are_added_and_never_dropped() -> None:
    kernel = repaired(planner=plan(task("a", ["a"], additional_suite_ids=["lint"]), task("b", ["b"])))
    kernel.play(ultracode, job())
    assert [r["input"]["suite_ids"] for r in kernel.kinds("coding.test")] == [["unit", "lint"], ["unit", "lint"]]


def test_nothing_changed_goes_to_repair() -> None:
    kernel = two_workers()
    kernel.files = {}
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None and (outcome.reason.code, outcome.rounds) == ("no_changes", 3)


@pytest.mark.parametrize("repair", [{}, {"a": "1"}], ids=["no change", "the same again"])
def test_the_same_tree_twice_stops_with_the_reason_before(repair: dict[str, str]) -> None:
    kernel = repaired()
    kernel.files["round-1/worker:a"] = repair
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None
    assert (outcome.outcome, outcome.rounds) == ("failed", 2)
    assert (outcome.reason.code, outcome.reason.round) == ("required_suite_failed", 0)


def test_a_tree_of_two_rounds_ago_stops_too() -> None:
    kernel = repaired(**{"round-2/planner": plan(task("a", ["a"]))})
    kernel.files |= {"round-1/worker:a": {"a": "3"}, "round-2/worker:a": {"a": "1"}}
    outcome = kernel.play(ultracode, job())
    assert outcome.rounds == 3 and outcome.reason is not None and outcome.reason.round == 1
    assert len(kernel.kinds("coding.test")) == 2


def test_a_conflict_goes_to_repair() -> None:
    kernel = repaired(planner=plan(task("a", ["a"]), task("b", ["*"])))
    kernel.files["round-0/worker:b"] = {"a": "9"}
    outcome = kernel.play(ultracode, job())
    assert outcome.outcome == "promoted"
    assert kernel.data("round-1/planner")["failures"][0]["code"] == "candidate_conflict"


def test_a_read_only_plan_ends_in_a_report() -> None:
    kernel = FakeKernel({"planner": plan(task("x"), task("y")), "worker:x": done("in a.py"), "worker:y": done("in b.py")})
    outcome = kernel.play(ultracode, job())
    assert outcome.outcome == "report" and outcome.result is not None
    assert "in a.py" in outcome.result.summary and "in b.py" in outcome.result.summary
    assert kernel.names() == ["planner", "round-0/worker:x", "round-0/worker:y"]
    assert {r["input"]["type"] for r in kernel.kinds("agent")} == {"read"}


def test_no_promote_ends_in_a_report() -> None:
    kernel = two_workers()
    outcome = kernel.play(ultracode, job(approval="no_promote"))
    assert outcome.outcome == "report" and outcome.envelope_digest is not None
    assert kernel.kinds("ask") == kernel.kinds("coding.promote") == []


def test_yes_is_recorded_as_policy() -> None:
    kernel = two_workers()
    assert kernel.play(ultracode, job(approval="yes")).outcome == "promoted"
    [promote] = kernel.kinds("coding.promote")
    assert promote["input"]["approval"]["by"] == "policy" and kernel.kinds("ask") == []


def test_decline_promotes_nothing() -> None:
    kernel = two_workers()
    kernel.answer = {**kernel.answer, "value": "decline", "note": "not now"}
    outcome = kernel.play(ultracode, job())
    assert outcome.outcome == "declined" and outcome.reason is not None and outcome.reason.message == "not now"
    assert kernel.kinds("coding.promote") == []


def test_a_moved_target_fails_without_a_repair() -> None:
    kernel = two_workers()
    kernel.errors["coding.promote"] = TargetMoved("main moved")
    outcome = kernel.play(ultracode, job())
    assert outcome.reason is not None and (outcome.outcome, outcome.reason.code, outcome.rounds) == ("failed", "target_moved", 1)


def test_no_suite_is_a_refusal_before_planning() -> None:
    kernel = two_workers()
    with pytest.raises(NoSuites):
        kernel.play(ultracode, job(suites=[]))
    assert kernel.requests == []


def test_fast_suites_are_a_check_of_writing_workers_only() -> None:
    from capataz.contracts.policy import Suite

    kernel = two_workers(planner=plan(task("a", ["a"]), task("b")))
    kernel.play(ultracode, job(suites=[Suite(id="unit", command="x", fast=True)]))
    checks = {r["name"]: (r["args"].get("accept") or {}).get("check") for r in kernel.kinds("agent")}
    assert (checks["worker:a"], checks["worker:b"]) == ("fast_suites", None)
    assert checks["planner"] == "plan" and checks["verifier"] == checks["reducer"] == "binding"


def test_every_round_tells_how_it_ended() -> None:
    kernel = repaired()
    kernel.play(ultracode, job())
    ends = [r["input"]["data"] for r in kernel.kinds("checkpoint")]
    assert [(end["round"], end["passed"]) for end in ends] == [(0, False), (1, True)]
