"""A goal to a branch: one model implements, another reviews, until it approves; then the run's branch is published."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from capataz import checkpoint, coding, program, run, scope
from capataz.contracts.canonical import to_json
from capataz.contracts.coding import CodingJob, JobOptions, Promotion
from capataz.contracts.errors import OrchestrationError
from capataz.contracts.records import Candidate, Record, TestReport
from capataz.programs.attempt import ENDS_ALL, attempt, compact
from capataz.programs.prompting import render
from capataz.programs.research import Packet


class GoalInput(Record):
    """``packet``: what the program ``research`` returned. ``published``: the commit that the run's branch is at, when a program
    calls this one again; ``base`` is then usually the same."""

    repository: str = "."
    goal: str = Field(min_length=1)
    criteria: list[str] = []
    packet: Packet | None = None
    base: str | None = None
    published: str | None = None
    max_rounds: int = Field(default=3, ge=1, le=20)
    model: str | None = None
    reviewer_model: str | None = None          # another model than the implementer's sees other mistakes
    max_turns: int = Field(default=40, ge=1)


class GoalReview(Record):
    approved: bool
    issues: list[str] = []


class GoalRound(Record):
    """``approved``: by the reviewer, and every required suite passed. ``error``: why there was no candidate."""

    number: int
    approved: bool = False
    sha: str | None = None
    summary: str = ""
    failed_suites: list[str] = []
    issues: list[str] = []
    error: str | None = None


class GoalResult(Record):
    outcome: Literal["published", "not_approved"]
    rounds: list[GoalRound]
    promotion: Promotion | None = None


@program
async def goal_pr(input: GoalInput) -> GoalResult:
    """Implements a goal, lets another model review it until it approves, and publishes the result to a branch."""
    options = JobOptions(model=input.model, max_turns=input.max_turns)
    job = await coding.job(input.repository, input.goal, criteria=input.criteria, base=input.base, options=options)
    rounds: list[GoalRound] = []
    sha = job.request.base_sha
    for number in range(input.max_rounds):
        async with scope(f"round-{number}"):
            done, candidate = await _round(input, job, number, sha=sha, last=rounds[-1] if rounds else None)
        rounds.append(done)
        sha = done.sha or sha
        await checkpoint(f"Round {number} {'approved' if done.approved else 'not approved'}", to_json(done))
        if done.approved and candidate is not None:
            promotion = await coding.publish(job, candidate, expected_old=input.published)
            return GoalResult(outcome="published", rounds=rounds, promotion=promotion)
    return GoalResult(outcome="not_approved", rounds=rounds)


async def _round(
    input: GoalInput, job: CodingJob, number: int, *, sha: str, last: GoalRound | None
) -> tuple[GoalRound, Candidate | None]:
    data: dict[str, Any] = {
        "goal": input.goal,
        "criteria": job.request.success_criteria,
        "packet": to_json(input.packet),
        "feedback": None if last is None else to_json(last),
    }
    prompt = render(job.policy.prompts, "goal")
    try:
        candidate, summary = await attempt(job, "implementer", prompt=prompt, data=data, base_sha=sha, number=number)
    except ENDS_ALL:
        raise
    except OrchestrationError as error:
        return GoalRound(number=number, error=compact(error)), None
    required = job.policy.required_suite_ids()
    report = await coding.test(job, candidate, suite_ids=required) if required else None
    review = await _review(input, job, candidate, summary, report, number)
    failed = [suite.id for suite in report.suites if suite.required and not suite.passed] if report is not None else []
    done = GoalRound(
        number=number,
        approved=review.approved and not review.issues and (report is None or report.passed),
        sha=candidate.sha,
        summary=summary,
        failed_suites=failed,
        issues=review.issues,
    )
    return done, candidate


async def _review(
    input: GoalInput, job: CodingJob, candidate: Candidate, summary: str, report: TestReport | None, number: int
) -> GoalReview:
    workspace = await coding.workspace(job, None, base_sha=candidate.sha, round=number)
    return await run(
        "reviewer",
        prompt=render(job.policy.prompts, "goal_review"),
        data={
            "goal": input.goal,
            "criteria": job.request.success_criteria,
            "summary": summary,
            "changed_files": to_json(candidate)["changed_files"],
            "suites": to_json(report.suites) if report is not None else [],
        },
        type="read",
        output=GoalReview,
        model=input.reviewer_model or input.model,
        max_turns=input.max_turns,
        workspace=workspace,
    )
