"""Rebase: a candidate whose target moved, on the target's present commit, with tests, reviews and approval made anew."""

from __future__ import annotations

from capataz import coding, program, scope
from capataz.contracts.coding import CodingOutcome, Reason, RebaseInput
from capataz.contracts.errors import OrchestrationError
from capataz.contracts.records import WorkflowPlan, WorkItem
from capataz.programs.course import tell_end
from capataz.programs.gate import pass_gate
from capataz.programs.rounds import judge
from capataz.programs.verdict import Round, failures_of


@program
async def rebase(input: RebaseInput) -> CodingOutcome:
    """Moves a candidate onto what its target has become; tests, reviews and approval are made anew."""
    try:
        return await _moved(input)
    except OrchestrationError as error:
        return CodingOutcome(outcome="failed", rounds=1, reason=Reason(code=error.code, message=str(error), round=0))


async def _moved(input: RebaseInput) -> CodingOutcome:
    async with scope("round-0"):
        onto = await coding.rebase(input.job, input.candidate)
        job, record = onto.job, onto.record
        plan = _plan(input)
        candidate = await coding.compose(job, [record], base_sha=job.request.base_sha, round=0)
        made = await judge(job, candidate, [record], suite_ids=job.policy.required_suite_ids(), number=0)
        done = Round(0, plan, [record], failures_of(made), made)
        await tell_end(done)
    if done.passed:
        return await pass_gate(job, done)
    return CodingOutcome(
        outcome="failed", rounds=1, reason=done.reason(), envelope_digest=made.envelope.sha256(), result=made.synthesis
    )


def _plan(input: RebaseInput) -> WorkflowPlan:
    """No planner was asked: the work is done, it only moves."""
    item = WorkItem(id="rebase", objective=f"Move candidate {input.candidate.sha[:12]}", write_globs=["**"])
    reason = "the target moved after the candidate was made"
    return WorkflowPlan(substantive=False, reason=reason, success_criteria=input.job.request.success_criteria, tasks=[item])
