"""The course of a coding job: at most three rounds, then a gate. Shared by ``ultracode`` and ``single``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from capataz import checkpoint, coding, scope
from capataz.contracts.canonical import to_json
from capataz.contracts.coding import CodingJob, CodingOutcome, Finding, PlanVerdict, Reason, ReportOutput
from capataz.contracts.errors import NoSuites, OrchestrationError
from capataz.contracts.records import WorkflowPlan
from capataz.programs.gate import pass_gate
from capataz.programs.rounds import play
from capataz.programs.verdict import Round

MAX_ROUNDS = 3

MakePlan = Callable[["Course"], Awaitable[WorkflowPlan]]


@dataclass(slots=True)
class Course:
    """Where a job stands. ``last`` is the round before; ``base_sha`` what the next one builds on."""

    job: CodingJob
    base_sha: str
    number: int = 0
    last: Round | None = None
    seen: set[str] = field(default_factory=set[str])
    suite_ids: list[str] = field(default_factory=list[str])

    def take(self, done: Round) -> None:
        self.last = done
        if done.made is not None:
            self.base_sha = done.made.candidate.sha
            self.seen.add(done.made.candidate.tree)


async def follow(job: CodingJob, make_plan: MakePlan) -> CodingOutcome:
    """Runs a job to its outcome. An error that no repair can mend ends it as ``failed`` with the error as its reason.

    Mistakes in a program and signals are not caught."""
    if not job.policy.required_suite_ids():
        raise NoSuites("no required suite is declared or detected; declare one in capataz.toml")
    course = Course(job, job.request.base_sha, suite_ids=job.policy.required_suite_ids())
    try:
        return await _rounds(course, make_plan)
    except OrchestrationError as error:
        reason = Reason(code=error.code, message=str(error), round=course.number, task=error.details.get("task"))
        return _outcome(course, "failed", reason)


async def _rounds(course: Course, make_plan: MakePlan) -> CodingOutcome:
    job = course.job
    for number in range(min(job.options.max_rounds, MAX_ROUNDS)):
        course.number = number
        before = course.last
        done = await _round(course, make_plan)
        course.take(done)
        if done.stalled and before is not None:
            return _outcome(course, "failed", before.reason())
        if done.passed and done.made is None:
            return _report(course, done)
        if done.passed:
            return await pass_gate(job, done)
    assert course.last is not None
    return _outcome(course, "failed", course.last.reason())


async def _round(course: Course, make_plan: MakePlan) -> Round:
    plan = await make_plan(course)
    async with scope(f"round-{course.number}"):
        verdict = await coding.plan_check(course.job, plan, base_sha=course.base_sha, repair=course.number > 0)
        await _tell_differences(verdict)
        _add_suites(course, verdict.plan)
        done = await play(
            course.job,
            verdict,
            number=course.number,
            base_sha=course.base_sha,
            suite_ids=list(course.suite_ids),
            seen=course.seen,
            feedback=course.last.for_worker() if course.last else None,
        )
        await tell_end(done)
        return done


def _add_suites(course: Course, plan: WorkflowPlan) -> None:
    """Suites are only ever added; policy gives their order."""
    wanted = {*course.suite_ids, *(suite for item in plan.tasks for suite in item.additional_suite_ids)}
    course.suite_ids = [suite.id for suite in course.job.policy.suites if suite.id in wanted]


async def _tell_differences(verdict: PlanVerdict) -> None:
    if verdict.differences:
        await checkpoint("The plan was corrected by the runtime", {"differences": verdict.differences})


async def tell_end(done: Round) -> None:
    """The journal's own record of how a round ended: ``capataz show`` reads it."""
    said = "passed" if done.passed else "repeats an earlier candidate" if done.stalled else f"failed: {done.failures[0].message}"
    await checkpoint(
        f"Round {done.number} {said}",
        {"round": done.number, "passed": done.passed, "stalled": done.stalled, "failures": to_json(done.failures)},
    )


def _outcome(course: Course, outcome: str, reason: Reason) -> CodingOutcome:
    last = course.last
    made = last.made if last else None
    return CodingOutcome.model_validate(
        {
            "outcome": outcome,
            "reason": reason,
            "rounds": course.number + 1,
            "envelope_digest": made.envelope.sha256() if made else None,
            "result": made.synthesis if made else None,
        }
    )


def _report(course: Course, done: Round) -> CodingOutcome:
    findings = [
        Finding(task_id=r.task_id, summary=r.output.summary, unresolved_risks=r.output.unresolved_risks) for r in done.records
    ]
    text = findings[0].summary if len(findings) == 1 else "\n\n".join(f"{f.task_id}: {f.summary}" for f in findings)
    risks = [risk for finding in findings for risk in finding.unresolved_risks]
    report = ReportOutput(summary=text, findings=findings, unresolved_risks=risks)
    return CodingOutcome(outcome="report", rounds=course.number + 1, result=report)
