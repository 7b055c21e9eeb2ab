from __future__ import annotations

from programs_kernel import FakeKernel, done, job

from capataz.programs.single import single


def worker() -> FakeKernel:
    kernel = FakeKernel({"worker:main": done()}, passes=lambda tree: tree.get("a") == "2")
    kernel.files = {"round-0/worker:main": {"a": "1"}, "round-1/worker:main": {"a": "2"}}
    return kernel


def test_single_has_one_worker_and_the_same_gate() -> None:
    kernel = worker()
    kernel.files["round-0/worker:main"] = {"a": "2"}
    assert kernel.play(single, job()).outcome == "promoted"
    assert kernel.names() == ["round-0/worker:main", "round-0/reducer", "round-0/verifier", "round-0/refuter"]
    data = kernel.data("round-0/worker:main")
    assert (data["objective"], data["write_globs"], data["feedback"]) == ("Mend it", ["**"], None)


def test_single_repairs_by_feedback_to_a_fresh_main() -> None:
    kernel = worker()
    outcome = kernel.play(single, job())
    assert (outcome.outcome, outcome.rounds) == ("promoted", 2)
    feedback = kernel.data("round-1/worker:main")["feedback"]
    assert feedback["failures"][0]["code"] == "required_suite_failed"
    assert feedback["failed_suites"][0]["id"] == "unit" and feedback["blocking_issues"] == ["suite fails", "suite fails"]


def test_single_stops_after_its_rounds() -> None:
    kernel = worker()
    outcome = kernel.play(single, job(max_rounds=1))
    assert (outcome.outcome, outcome.rounds) == ("failed", 1)
    assert outcome.reason is not None and outcome.reason.code == "required_suite_failed"
