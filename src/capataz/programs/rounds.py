"""One round: workers, one candidate, its evidence and its reviews."""

from __future__ import annotations

from typing import Any

from capataz import coding, fan_out
from capataz.contracts.coding import CodingJob, Failure, PlanVerdict
from capataz.contracts.errors import (
    AgentBlocked,
    AgentFailed,
    AgentStuck,
    CandidateConflict,
    CapatazError,
    ContextOverflow,
    EffectCancelled,
    EvidenceError,
    ForbiddenAccess,
    NoChanges,
    OrchestrationError,
    OutputInvalid,
    ResourceLimit,
    TurnsExhausted,
)
from capataz.contracts.records import Candidate, ReviewOutput, WorkerRecord, WorkItem
from capataz.programs import agents
from capataz.programs.verdict import Made, Round, failure_of, failures_of

COSTS_THE_ROUND: tuple[type[CapatazError], ...] = (
    AgentBlocked,
    AgentFailed,
    AgentStuck,
    ContextOverflow,
    EffectCancelled,
    EvidenceError,
    ForbiddenAccess,
    OutputInvalid,
    ResourceLimit,
    TurnsExhausted,
)
"""A worker that ends with one of these has not completed; every other error ends the run."""


async def play(
    job: CodingJob,
    verdict: PlanVerdict,
    *,
    number: int,
    base_sha: str,
    suite_ids: list[str],
    seen: set[str],
    feedback: dict[str, Any] | None,
) -> Round:
    """Plays round ``number`` on ``base_sha``. ``seen``: trees of earlier candidates; ``feedback``: what the last round left."""
    plan = verdict.plan
    results = await _workers(job, verdict, number=number, base_sha=base_sha, feedback=feedback)
    records = [result for result in results if isinstance(result, WorkerRecord)]
    failures = [result for result in results if isinstance(result, Failure)]
    if failures or all(item.read_only for item in plan.tasks):
        return Round(number, plan, records, failures)
    if not any(record.changed_files for record in records):
        return Round(number, plan, records, [_no_changes()], stalled=bool(seen))
    try:
        candidate = await coding.compose(job, records, base_sha=base_sha, round=number)
    except (CandidateConflict, NoChanges) as error:
        return Round(number, plan, records, [failure_of(error, task=None)])
    if candidate.tree in seen:
        return Round(number, plan, records, stalled=True)
    if not candidate.changed_files:
        return Round(number, plan, records, [_no_changes()])
    made = await judge(job, candidate, records, suite_ids=suite_ids, number=number)
    return Round(number, plan, records, failures_of(made), made)


def _no_changes() -> Failure:
    return Failure(task=None, code=NoChanges.code, message="tasks that should write left nothing changed")


async def _workers(
    job: CodingJob, verdict: PlanVerdict, *, number: int, base_sha: str, feedback: dict[str, Any] | None
) -> list[WorkerRecord | Failure]:
    async def one(item: WorkItem) -> WorkerRecord | Failure:
        try:
            return await _worker(job, item, verdict, number=number, base_sha=base_sha, feedback=feedback)
        except COSTS_THE_ROUND as error:
            return failure_of(error, task=item.id)
        except OrchestrationError as error:
            error.details.setdefault("task", item.id)
            raise

    return await fan_out(verdict.plan.tasks, one, limit=job.options.max_workers, key=lambda item: item.id)


async def _worker(
    job: CodingJob, item: WorkItem, verdict: PlanVerdict, *, number: int, base_sha: str, feedback: dict[str, Any] | None
) -> WorkerRecord | Failure:
    workspace = await coding.workspace(job, item, base_sha=base_sha, round=number)
    output = await agents.work(job, item, verdict, workspace=workspace, feedback=feedback, name=f"worker:{item.id}")
    if output.status != "completed":
        return agents.blocked(item, output)
    return await coding.freeze(job, workspace, item, output, round=number)


async def judge(job: CodingJob, candidate: Candidate, records: list[WorkerRecord], *, suite_ids: list[str], number: int) -> Made:
    report = await coding.test(job, candidate, suite_ids=suite_ids)
    manifest = await coding.manifest(job, candidate, report)
    synthesis = await agents.reduce(job, candidate, report, manifest, records)
    workspace = await coding.workspace(job, None, base_sha=candidate.sha, round=number)

    async def reviewed(role: agents.Role) -> ReviewOutput:
        return await agents.review(job, role, candidate, report, manifest, synthesis, workspace=workspace)

    roles: list[agents.Role] = ["verifier", "refuter"]
    answers = await fan_out(roles, reviewed, limit=2, key=str)
    reviews: dict[str, ReviewOutput] = dict(zip(roles, answers, strict=True))
    envelope = await coding.envelope(job, candidate, report, manifest, synthesis, reviews)
    return Made(candidate, report, manifest, synthesis, reviews, envelope)
