"""The envelope: everything that an approval is about, in one record with one digest."""

from __future__ import annotations

from typing import Any

from capataz.contracts.canonical import digest
from capataz.contracts.errors import BindingBroken, ReviewInvalid, ReviewNotBound
from capataz.contracts.records import Candidate, CandidateEnvelope, EvidenceManifest, ReviewOutput, SynthesisOutput, TestReport
from capataz.evidence.binding import bound_values, check_answer
from capataz.evidence.testing import unsealed

REVIEWERS = ("verifier", "refuter")


def make_envelope(
    candidate: Candidate,
    report: TestReport,
    manifest: EvidenceManifest,
    synthesis: SynthesisOutput,
    reviews: dict[str, ReviewOutput],
    usage: dict[str, Any],
) -> CandidateEnvelope:
    """Passed: the report passed and both reviews did, without a blocking issue. Raises ``BindingBroken`` when report or
    manifest is for anything else, ``ReviewNotBound`` and ``ReviewInvalid``."""
    _sealed(candidate, report, manifest)
    values = bound_values(candidate, report, manifest)
    for role, answer in {"reducer": synthesis, **reviews}.items():
        refusal = check_answer(answer, values)
        if refusal is not None:
            error = ReviewInvalid if refusal.code == ReviewInvalid.code else ReviewNotBound
            raise error(f"{role}: {refusal.message}", role=role, **refusal.details)
    return CandidateEnvelope(
        passed=report.passed and passed_reviews(reviews),
        candidate_id=candidate.id,
        candidate_sha=candidate.sha,
        original_base_sha=candidate.original_base_sha,
        changed_files=candidate.changed_files,
        test_edits=report.test_edits,
        test_report_digest=report.digest,
        evidence_digest=manifest.digest,
        diff_uri=candidate.diff_uri,
        test_artifact_uri=manifest.test_artifact_uri,
        suites=report.suites,
        reviews=reviews,
        synthesis=synthesis,
        usage=usage,
    )


def passed_reviews(reviews: dict[str, ReviewOutput]) -> bool:
    """Verifier and refuter both answered, passed it and named no blocking issue."""
    return set(REVIEWERS) <= set(reviews) and all(r.candidate_passed and not r.blocking_issues for r in reviews.values())


def _sealed(candidate: Candidate, report: TestReport, manifest: EvidenceManifest) -> None:
    pairs = [
        ("the report's candidate", report.candidate_id, candidate.id),
        ("the report's commit", report.candidate_sha, candidate.sha),
        ("the report's tree", report.tree, candidate.tree),
        ("the report's digest", report.digest, digest(unsealed(report))),
        ("the manifest's candidate", manifest.candidate_id, candidate.id),
        ("the manifest's commit", manifest.candidate_sha, candidate.sha),
        ("the manifest's report", manifest.test_report_digest, report.digest),
        ("the manifest's digest", manifest.digest, digest(unsealed(manifest))),
        ("the manifest's diff", manifest.diff_uri, candidate.diff_uri),
    ]
    for what, given, expected in pairs:
        if given != expected:
            raise BindingBroken(f"{what} is {given}, not {expected}; nothing was approved", what=what)
