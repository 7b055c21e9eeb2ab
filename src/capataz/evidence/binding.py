"""Bindings: every synthesis and review is about exactly one candidate, report and manifest."""

from __future__ import annotations

from typing import Any

from capataz.contracts.coding import Refusal
from capataz.contracts.records import Candidate, CandidateEnvelope, EvidenceManifest, ReviewOutput, SynthesisOutput, TestReport

FIELDS = ("candidate_id", "candidate_sha", "test_report_digest", "evidence_digest")


def bound_values(candidate: Candidate, report: TestReport, manifest: EvidenceManifest) -> dict[str, str]:
    """What each of the four fields must say."""
    return {
        "candidate_id": candidate.id,
        "candidate_sha": candidate.sha,
        "test_report_digest": report.digest,
        "evidence_digest": manifest.digest,
    }


def unbound(answer: SynthesisOutput | ReviewOutput | CandidateEnvelope, values: dict[str, str]) -> Refusal | None:
    """A refusal that names the first field with another value; None: the answer is bound."""
    for field in FIELDS:
        given = getattr(answer, field)
        if given != values[field]:
            return Refusal(
                code="review_not_bound",
                message=f"{field} is {given[:80]!r}; it must be {values[field]!r}, as in your input",
                details={"field": field, "given": given[:200], "expected": values[field]},
            )
    return None


def check_answer(answer: SynthesisOutput | ReviewOutput, values: dict[str, str]) -> Refusal | None:
    """Bound, and not at odds with itself."""
    refusal = unbound(answer, values)
    if refusal is None and isinstance(answer, ReviewOutput) and answer.candidate_passed and answer.blocking_issues:
        return Refusal(
            code="review_invalid",
            message="candidate_passed is true and blocking_issues is not empty; reject the candidate or clear the issues",
            details={"blocking_issues": answer.blocking_issues[:20]},
        )
    return refusal


def parse_answer(role: str | None, value: Any) -> SynthesisOutput | ReviewOutput:
    """The answer of ``role``; without one by its shape: a review is what says ``candidate_passed``. Raises pydantic's error."""
    is_review = role != "reducer" if role else isinstance(value, dict) and "candidate_passed" in value
    return (ReviewOutput if is_review else SynthesisOutput).model_validate(value)
