"""Ultracode: a planner, up to four workers at a time, one candidate, a reducer and two independent reviewers, repaired twice."""

from __future__ import annotations

from capataz import program, scope
from capataz.contracts.coding import CodingJob, CodingOutcome
from capataz.contracts.records import WorkflowPlan
from capataz.programs import agents
from capataz.programs.course import Course, follow


@program
async def ultracode(input: CodingJob) -> CodingOutcome:
    """Plans a coding job, implements it with parallel workers, tests, reviews, repairs and promotes what was approved."""
    return await follow(input, _plan)


async def _plan(course: Course) -> WorkflowPlan:
    """The first planner stands outside the rounds; a repair's planner inside the round that it plans."""
    if course.last is None:
        return await agents.plan(course.job, base_sha=course.base_sha, round=0, previous=None)
    async with scope(f"round-{course.number}"):
        return await agents.plan(
            course.job, base_sha=course.base_sha, round=course.number, previous=course.last.for_planner()
        )
