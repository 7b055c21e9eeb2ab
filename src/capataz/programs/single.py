"""Single: one worker and no planner, with the evidence and the gate of Ultracode."""

from __future__ import annotations

from capataz import program
from capataz.contracts.coding import CodingJob, CodingOutcome
from capataz.contracts.records import WorkflowPlan, WorkItem
from capataz.programs.course import Course, follow


@program
async def single(input: CodingJob) -> CodingOutcome:
    """Gives the whole request to one worker, tests, reviews, repairs by feedback and promotes what was approved."""
    return await follow(input, _plan)


async def _plan(course: Course) -> WorkflowPlan:
    request = course.job.request
    main = WorkItem(id="main", objective=request.request, write_globs=["**"])
    return WorkflowPlan(
        substantive=False, reason="one worker does all of it", success_criteria=request.success_criteria, tasks=[main]
    )
