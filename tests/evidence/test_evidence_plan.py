from __future__ import annotations

from typing import Any

import pytest

from capataz.contracts.coding import CodingJob, JobOptions, Target
from capataz.contracts.errors import EvidenceError
from capataz.contracts.policy import Policy, Suite
from capataz.contracts.records import CodingRequest, WorkflowPlan
from capataz.evidence.plan import check_plan

FILES = [b"calc.py", b"src/a.py", b"src/b.py", b"capataz.toml", b".github/workflows/ci.yml"]


def job(max_workers: int = 4) -> CodingJob:
    return CodingJob(
        request=CodingRequest(repository="/r", base_sha="0" * 40, request="do", success_criteria=["it works"]),
        target=Target(ref="refs/heads/main", expected_old="0" * 40),
        policy=Policy(suites=[Suite(id="unit", command="x"), Suite(id="lint", command="y", required=False)]),
        options=JobOptions(max_workers=max_workers),
    )


def task(task_id: str, globs: list[str], **more: Any) -> dict[str, Any]:
    return {"id": task_id, "objective": "o", "write_globs": globs, **more}


def plan(*tasks: dict[str, Any], substantive: bool | None = None, criteria: list[str] | None = None) -> WorkflowPlan:
    return WorkflowPlan.model_validate({
        "substantive": len(tasks) > 1 if substantive is None else substantive, "reason": "r",
        "success_criteria": criteria or ["it works"], "tasks": list(tasks),
    })


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("plan_invalid", plan(task("a", ["a"]), task("b", ["b"]), substantive=False)),
        ("plan_invalid", plan(task("a", ["a"]), substantive=True)),
        ("plan_invalid", plan(*[task(f"t{i}", [f"f{i}"]) for i in range(5)])),
        ("plan_invalid", plan(task("a", ["x"]), task("a", ["y"]))),
        ("plan_invalid", plan(task("a", ["x"]), task("A", ["y"]))),
        ("plan_invalid", plan(task("a", []))),
        ("plan_invalid", plan(task("a", ["x"], read_only=True))),
        ("plan_invalid", plan(task("a", ["../x"]))),
        ("plan_invalid", plan(task("a", ["src"]))),
        ("unknown_suite", plan(task("a", ["x"], additional_suite_ids=["nope"]))),
        ("scope_violation", plan(task("a", ["capataz.toml"]))),
        ("scope_violation", plan(task("a", ["calc.py", ".github/workflows/ci.yml"]))),
        ("scope_violation", plan(task("a", [".github/**"]))),
        ("scope_violation", plan(task("a", [".github/workflows/*"]))),
        ("overlapping_scopes", plan(task("a", ["calc.py"]), task("b", ["*.py"]))),
        ("overlapping_scopes", plan(task("a", ["new/*.py"]), task("b", ["new/x*"]))),
        ("overlapping_scopes", plan(task("a", ["**"]), task("b", ["src/a.py"]))),
        ("overlapping_scopes", plan(task("a", ["x"]), task("b", ["y"]), task("c", ["z", "y"]))),
    ],
)
def test_a_bad_plan_is_refused_by_its_rule(code: str, bad: WorkflowPlan):
    with pytest.raises(EvidenceError) as error:
        check_plan(job(), bad, FILES)
    assert error.value.code == code


def test_an_overlap_names_both_tasks_and_a_path():
    with pytest.raises(EvidenceError) as error:
        check_plan(job(), plan(task("one", ["src/*.py"]), task("two", ["src/b*"])), FILES)
    assert error.value.details["tasks"] == ["one", "two"] and "src/b" in error.value.message


def test_good_plans_pass_and_protected_paths_count_for_nobody():
    check_plan(job(), plan(task("a", ["**"])), FILES)
    check_plan(job(), plan(task("a", ["capataz.tom[l]"]), task("b", ["*.toml"])), [b"capataz.toml"])
    check_plan(job(), plan(task("a", ["a"]), task("b", ["a/**"])), FILES)
    check_plan(job(), plan(task("a", ["src/**"]), task("look", [], read_only=True)), FILES)
    check_plan(job(max_workers=1), plan(task("a", ["src/**"]), substantive=True), FILES)


def test_criteria_are_the_requests_whatever_the_planner_wrote():
    verdict = check_plan(job(), plan(task("a", ["x"]), criteria=["something easier"]), FILES)
    assert verdict.plan.success_criteria == ["it works"]
    assert any("it works" in d for d in verdict.differences) and any("something easier" in d for d in verdict.differences)
    assert check_plan(job(), plan(task("a", ["x"])), FILES).differences == []
