"""The rules of a plan. Criteria and required suites are the request's and the policy's, whatever the planner wrote."""

from __future__ import annotations

from collections import Counter

from capataz.contracts.coding import CodingJob, PlanVerdict
from capataz.contracts.errors import PlanInvalid, UnknownSuite
from capataz.contracts.records import WorkflowPlan, WorkItem
from capataz.evidence.scopes import check_folders, check_globs, check_overlaps, folders_of


def check_plan(job: CodingJob, plan: WorkflowPlan, files: list[bytes]) -> PlanVerdict:
    """``files``: the paths of the round's base tree. Raises ``PlanInvalid``, ``UnknownSuite``, ``ScopeViolation``,
    ``OverlappingScopes``; each message says how to mend the plan."""
    _count(plan, job.options.max_workers)
    _unique(plan.tasks)
    protected = job.policy.scopes.protected
    folders = folders_of(files)
    for item in plan.tasks:
        _writes(item)
        _suites(item, job)
        check_globs(item, protected)
        check_folders(item, folders)
    check_overlaps(plan.tasks, protected, files)
    kept, differences = _immutable(job, plan)
    return PlanVerdict(plan=kept, differences=differences, globs={i.id: list(i.write_globs) for i in plan.tasks})


def _count(plan: WorkflowPlan, max_workers: int) -> None:
    number = len(plan.tasks)
    if not plan.substantive and number != 1:
        raise PlanInvalid(f"a plan that is not substantive has exactly 1 task, not {number}; set substantive or merge the tasks")
    low = min(2, max_workers)
    if plan.substantive and not low <= number <= max_workers:
        span = f"{low} to {max_workers} tasks" if low < max_workers else f"exactly {low} task{'s' if low > 1 else ''}"
        raise PlanInvalid(f"a substantive plan has {span}, not {number}")


def _unique(tasks: list[WorkItem]) -> None:
    twice = [task for task, number in Counter(i.id.casefold() for i in tasks).items() if number > 1]
    if twice:
        raise PlanInvalid(f"task ids must differ, also in more than case: {', '.join(twice)}", tasks=twice)


def _writes(item: WorkItem) -> None:
    if item.read_only and item.write_globs:
        raise PlanInvalid(f"task {item.id} is read-only and declares writes; drop write_globs or read_only", task=item.id)
    if not item.read_only and not item.write_globs:
        raise PlanInvalid(f"task {item.id} needs at least one write glob, or read_only = true", task=item.id)


def _suites(item: WorkItem, job: CodingJob) -> None:
    for suite_id in item.additional_suite_ids:
        if job.policy.suite(suite_id) is None:
            known = ", ".join(s.id for s in job.policy.suites)
            text = f"task {item.id}: no suite {suite_id!r} is declared; declared are {known}"
            raise UnknownSuite(text, task=item.id, suite=suite_id)


def _immutable(job: CodingJob, plan: WorkflowPlan) -> tuple[WorkflowPlan, list[str]]:
    criteria = job.request.success_criteria
    if plan.success_criteria == criteria:
        return plan, []
    lost = [c for c in criteria if c not in plan.success_criteria]
    added = [c for c in plan.success_criteria if c not in criteria]
    differences = [f"the planner left out or changed the criterion: {c}" for c in lost]
    differences += [f"the planner wrote another criterion, which does not count: {c}" for c in added]
    if not differences:
        differences = ["the planner wrote the criteria in another order or number"]
    return plan.model_copy(update={"success_criteria": list(criteria)}), differences
