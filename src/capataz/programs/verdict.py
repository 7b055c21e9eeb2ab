"""What a round came to: pure functions over its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from capataz.contracts.canonical import to_json
from capataz.contracts.coding import Failure, Reason
from capataz.contracts.errors import CapatazError
from capataz.contracts.records import (
    Candidate,
    CandidateEnvelope,
    EvidenceManifest,
    ReviewOutput,
    SuiteResult,
    SynthesisOutput,
    TestReport,
    WorkerRecord,
    WorkflowPlan,
)

LOG_TAIL = 12_000
"""Characters of the suites' log that a worker gets as feedback."""


@dataclass(frozen=True, slots=True)
class Made:
    """A round that made a candidate: everything known of it."""

    candidate: Candidate
    report: TestReport
    manifest: EvidenceManifest
    synthesis: SynthesisOutput
    reviews: dict[str, ReviewOutput]
    envelope: CandidateEnvelope


@dataclass(frozen=True, slots=True)
class Round:
    """``made`` None: the round ended before a candidate was reviewed. ``stalled``: it only repeats an earlier tree."""

    number: int
    plan: WorkflowPlan
    records: list[WorkerRecord] = field(default_factory=list[WorkerRecord])
    failures: list[Failure] = field(default_factory=list[Failure])
    made: Made | None = None
    stalled: bool = False

    @property
    def passed(self) -> bool:
        return not self.failures and not self.stalled

    def reason(self) -> Reason:
        first = self.failures[0]
        return Reason(code=first.code, message=first.message, round=self.number, task=first.task)

    def for_planner(self) -> dict[str, Any]:
        """The repair planner's view; the five fields are null when no candidate was made."""
        made = self.made
        return {
            "failures": to_json(self.failures),
            "candidate": to_json(made.candidate) if made else None,
            "test_report": to_json(made.report) if made else None,
            "evidence": to_json(made.manifest) if made else None,
            "synthesis": to_json(made.synthesis) if made else None,
            "reviews": to_json(made.reviews) if made else None,
        }

    def for_worker(self) -> dict[str, Any]:
        """The compact feedback that workers of the next round get."""
        made = self.made
        return {
            "round": self.number,
            "failures": to_json(self.failures),
            "failed_suites": [_compact(suite) for suite in made.report.suites if not suite.passed] if made else [],
            "blocking_issues": [issue for review in made.reviews.values() for issue in review.blocking_issues] if made else [],
            "test_log": made.manifest.test_log_text[-LOG_TAIL:] if made and not made.report.passed else "",
        }


def _compact(suite: SuiteResult) -> dict[str, Any]:
    return {"id": suite.id, "command": suite.command, "exit_code": suite.exit_code, "reason": suite.reason, "findings": suite.findings}


def failure_of(error: CapatazError, *, task: str | None) -> Failure:
    return Failure(task=task, code=error.code, message=str(error))


def failures_of(made: Made) -> list[Failure]:
    """Why a reviewed candidate does not pass, suites first; empty when it does."""
    failures = _suite_failures(made.report)
    for role, review in made.reviews.items():
        if not review.candidate_passed or review.blocking_issues:
            issues = "; ".join(review.blocking_issues) or "no issue was named"
            failures.append(Failure(task=None, code="review_rejected", message=f"the {role} rejects the candidate: {issues}"))
    if not failures and not made.envelope.passed:
        failures.append(Failure(task=None, code="binding_broken", message="the envelope of the candidate did not pass"))
    return failures


def _suite_failures(report: TestReport) -> list[Failure]:
    if report.passed:
        return []
    failed = [suite for suite in report.suites if not suite.passed]
    if not failed:
        return [Failure(task=None, code="required_suite_failed", message="the test report did not pass")]
    failed.sort(key=lambda suite: (not suite.required, suite.reason == "new_tests_missing"))
    return [Failure(task=None, code=_code(suite), message=_say(suite)) for suite in failed]


def _code(suite: SuiteResult) -> str:
    return "new_tests_missing" if suite.reason == "new_tests_missing" else "required_suite_failed"


def _say(suite: SuiteResult) -> str:
    how = f"exit code {suite.exit_code}" if suite.reason == "exit" else suite.reason.replace("_", " ")
    return f"suite {suite.id} failed: {'; '.join([how, *suite.findings])}"
