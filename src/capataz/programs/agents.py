"""The agents of the coding programs: names, structured inputs and rules of each (the names and fields are a contract)."""

from __future__ import annotations

from typing import Any, Literal

from capataz import coding, run
from capataz.contracts.canonical import to_json
from capataz.contracts.coding import CodingJob, Failure, PlanVerdict, WorkspaceRef
from capataz.contracts.errors import ReviewInvalid
from capataz.contracts.records import (
    Candidate,
    EvidenceManifest,
    ReviewOutput,
    SynthesisOutput,
    TestReport,
    WorkerOutput,
    WorkerRecord,
    WorkflowPlan,
    WorkItem,
)
from capataz.programs.prompting import render

Role = Literal["verifier", "refuter"]

REPAIR = (
    "The round before did not pass. Plan the smallest set of tasks that mends what failed. The work so far is kept: tasks build on "
    "the candidate when there is one, on the unchanged base otherwise. Criteria stay as they are and no suite is dropped."
)


async def plan(job: CodingJob, *, base_sha: str, round: int, previous: dict[str, Any] | None) -> WorkflowPlan:
    """Asks the planner; ``previous`` (repairs) holds what the last round left. Raises the plan rules' own errors."""
    workspace = await coding.workspace(job, None, base_sha=base_sha, round=round)
    data: dict[str, Any] = {
        "request": job.request.request,
        "immutable_success_criteria": job.request.success_criteria,
        "required_suite_ids": job.policy.required_suite_ids(),
    }
    if previous is not None:
        data |= {**previous, "instruction": REPAIR}
    return await run(
        "planner",
        prompt=_planner_prompt(job, repair=previous is not None, round=round),
        data=data,
        type="read",
        output=WorkflowPlan,
        model=job.options.model,
        max_turns=job.options.max_turns,
        workspace=workspace,
        accept=coding.plan_rules(job, base_sha=base_sha, repair=previous is not None),
    )


def _planner_prompt(job: CodingJob, *, repair: bool, round: int) -> str:
    suites = [{"id": s.id, "command": s.command, "required": s.required} for s in job.policy.suites]
    return render(
        job.prompts,
        "repair_planner" if repair else "planner",
        round=round,
        max_rounds=job.options.max_rounds,
        max_workers=job.options.max_workers,
        suites=suites,
        protected=job.policy.scopes.protected,
    )


async def work(
    job: CodingJob, item: WorkItem, verdict: PlanVerdict, *, workspace: WorkspaceRef, feedback: dict[str, Any] | None, name: str
) -> WorkerOutput:
    """One worker on its own workspace. Raises what its agent raises."""
    globs = verdict.globs.get(item.id, item.write_globs)
    fast = not item.read_only and any(suite.fast for suite in job.policy.suites)
    return await run(
        name,
        prompt=render(job.prompts, "worker", read_only=item.read_only, suites=[s.id for s in job.policy.suites if s.fast]),
        data={
            "objective": item.objective,
            "success_criteria": verdict.plan.success_criteria,
            "write_globs": globs,
            "additional_suite_ids": item.additional_suite_ids,
            "feedback": feedback,
        },
        type="read" if item.read_only else "general",
        output=WorkerOutput,
        model=job.options.model,
        max_turns=job.options.max_turns,
        workspace=workspace,
        accept=coding.fast_suites(job, workspace) if fast else None,
    )


async def reduce(
    job: CodingJob, candidate: Candidate, report: TestReport, manifest: EvidenceManifest, records: list[WorkerRecord]
) -> SynthesisOutput:
    """The reducer: what was done, bound to candidate and evidence. Raises ``ReviewNotBound``."""
    return await run(
        "reducer",
        prompt=render(job.prompts, "reducer"),
        data={**_evidence(job, candidate, report, manifest), "worker_records": to_json(records)},
        type="reason",
        output=SynthesisOutput,
        model=job.options.model,
        max_turns=job.options.max_turns,
        accept=coding.binding(candidate, report, manifest, role="reducer"),
    )


async def review(
    job: CodingJob,
    role: Role,
    candidate: Candidate,
    report: TestReport,
    manifest: EvidenceManifest,
    synthesis: SynthesisOutput,
    *,
    workspace: WorkspaceRef,
) -> ReviewOutput:
    """One reviewer, on the candidate's own files, read-only. Raises ``ReviewNotBound``, ``ReviewInvalid``."""
    answer = await run(
        role,
        prompt=render(job.prompts, role),
        data={**_evidence(job, candidate, report, manifest), "synthesis": to_json(synthesis)},
        type="read",
        output=ReviewOutput,
        model=job.options.model,
        max_turns=job.options.max_turns,
        workspace=workspace,
        accept=coding.binding(candidate, report, manifest, role=role),
    )
    if answer.candidate_passed and answer.blocking_issues:
        raise ReviewInvalid(f"the {role} passed the candidate and lists blocking issues")
    return answer


def _evidence(job: CodingJob, candidate: Candidate, report: TestReport, manifest: EvidenceManifest) -> dict[str, Any]:
    return {
        "success_criteria": job.request.success_criteria,
        "candidate": to_json(candidate),
        "test_report": to_json(report),
        "evidence": to_json(manifest),
    }


def blocked(item: WorkItem, output: WorkerOutput) -> Failure:
    """A worker that says that it cannot go on."""
    return Failure(task=item.id, code="agent_blocked", message=f"worker {item.id} is blocked: {output.summary}")
