"""Promotion: every binding checked again, then one compare-and-swap of the target, then its checked-out files.

Idempotent: a crash between the write and its record finds the ref already there and finishes what is left.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import digest_bytes
from capataz.contracts.coding import CodingContext, CodingJob, Promotion
from capataz.contracts.errors import BindingBroken, CapatazError, TargetMoved
from capataz.contracts.records import CandidateEnvelope, EvidenceManifest, TestReport
from capataz.contracts.workspace import Repositories, RepositoryInfo, RunRepository
from capataz.evidence.binding import unbound
from capataz.evidence.envelope import passed_reviews
from capataz.evidence.refs import HEADS, short
from capataz.evidence.worktrees import holder

Sealed = TypeVar("Sealed", TestReport, EvidenceManifest)


async def verify(run: RunRepository, blobs: Blobs, job: CodingJob, envelope: CandidateEnvelope, approval: dict[str, Any]) -> str:
    """The candidate's tree. Raises ``BindingBroken`` at the first thing that is not what was approved."""
    if approval.get("value") != "approve":
        raise BindingBroken("the decision is not `approve`; nothing was written")
    if approval.get("binding") != envelope.sha256():
        raise BindingBroken("the approval is for another envelope; nothing was written", what="approval")
    report = await _record(blobs, TestReport, envelope.test_report_digest)
    manifest = await _record(blobs, EvidenceManifest, envelope.evidence_digest)
    _same("original_base_sha", envelope.original_base_sha, job.request.base_sha)
    for record in (report, manifest):
        _same("candidate_id", record.candidate_id, envelope.candidate_id)
        _same("candidate_sha", record.candidate_sha, envelope.candidate_sha)
    _same("test_report_digest", manifest.test_report_digest, envelope.test_report_digest)
    _same("suites", report.suites, envelope.suites)
    _same("test_edits", report.test_edits, envelope.test_edits)
    _same("diff_uri", manifest.diff_uri, envelope.diff_uri)
    _same("test_artifact_uri", manifest.test_artifact_uri, envelope.test_artifact_uri)
    _passed(job, envelope, report)
    await _commit(run, job, envelope, report.tree)
    await _diff(run, blobs, envelope, report.tree)
    return report.tree


async def _record(blobs: Blobs, kind: type[Sealed], digest: str) -> Sealed:
    """A sealed record by its digest."""
    try:
        data = await blobs.get(f"blob:{digest}")
        _same("digest", digest_bytes(data), digest)
        return kind.model_validate({**json.loads(data), "digest": digest})
    except BindingBroken:
        raise
    except (CapatazError, ValueError, TypeError) as error:
        raise BindingBroken(f"{digest} names no {kind.__name__} in the store; nothing was written", what=kind.__name__) from error


def _same(what: str, given: Any, expected: Any) -> None:
    if given != expected:
        raise BindingBroken(f"{what} does not match what was approved; nothing was written", what=what)


def _passed(job: CodingJob, envelope: CandidateEnvelope, report: TestReport) -> None:
    ran = {s.id for s in report.suites if s.passed}
    if not (envelope.passed and report.passed and passed_reviews(envelope.reviews)):
        raise BindingBroken("the candidate did not pass; nothing was written", what="passed")
    missing = [s for s in job.policy.required_suite_ids() if s not in ran]
    if missing:
        raise BindingBroken(f"the required suite {missing[0]} did not pass; nothing was written", what="suites")
    values = {
        "candidate_id": envelope.candidate_id, "candidate_sha": envelope.candidate_sha,
        "test_report_digest": envelope.test_report_digest, "evidence_digest": envelope.evidence_digest,
    }
    for role, answer in {"reducer": envelope.synthesis, **envelope.reviews}.items():
        if unbound(answer, values) is not None:
            raise BindingBroken(f"the answer of the {role} is for another candidate; nothing was written", what=role)


async def _commit(run: RunRepository, job: CodingJob, envelope: CandidateEnvelope, tree: str) -> None:
    try:
        _same("the commit's tree", await run.tree_of(envelope.candidate_sha), tree)
    except BindingBroken:
        raise
    except CapatazError as error:
        raise BindingBroken(f"the candidate's commit cannot be read: {error.message}; nothing was written") from error


async def _diff(run: RunRepository, blobs: Blobs, envelope: CandidateEnvelope, tree: str) -> None:
    base = await run.tree_of(envelope.original_base_sha)
    changed = sorted(c.path for c in await run.changes(base, tree))
    _same("changed_files", changed, sorted(envelope.changed_files))
    _same("the diff", await blobs.get(envelope.diff_uri), await run.diff(base, tree))


async def publish(
    repositories: Repositories, run: RunRepository, ctx: CodingContext, job: CodingJob, sha: str, tree: str
) -> Promotion:
    """One compare-and-swap. A target that is checked out and dirty stays as it is: the result goes to ``capataz/RUN``."""
    info = await repositories.inspect(job.request.repository)
    target = job.target
    own, done = await _own_place(repositories, info, own_ref(ctx.run_id), sha)
    if done and target.ref != own:
        return Promotion(ref=own, old=None, new=sha, note=merge_note(own, target.ref, "it could not be updated"))
    present = await repositories.ref(info, target.ref)
    place = await holder(repositories, info, target.ref)
    if present != sha:
        if present != target.expected_old:
            raise TargetMoved(
                f"{short(target.ref)} is at {present or 'no commit'}, not at {target.expected_old or 'no commit'} as approved; "
                f"`capataz rebase {ctx.run_id}` composes, tests and reviews anew",
                ref=target.ref, expected=target.expected_old, present=present,
            )
        dirty = await repositories.dirty(place, tree) if place else None
        if dirty:
            await repositories.publish(run, sha, ref=own, expected_old=None)
            return Promotion(ref=own, old=None, new=sha, note=merge_note(own, target.ref, dirty))
        await repositories.publish(run, sha, ref=target.ref, expected_old=target.expected_old)
    updated = await _files(repositories, place, target.expected_old, sha)
    return Promotion(ref=target.ref, old=target.expected_old, new=sha, note=_note(job, place, updated), checked_out=updated)


async def _own_place(repositories: Repositories, info: RepositoryInfo, own: str, sha: str) -> tuple[str, bool]:
    """The run's own branch, numbered when an earlier candidate of the run stands there; and whether ``sha`` is on it."""
    number, ref = 1, own
    while (present := await repositories.ref(info, ref)) not in (None, sha):
        number += 1
        ref = f"{own}-{number}"
    return ref, present == sha


async def _files(repositories: Repositories, place: RepositoryInfo | None, old: str | None, sha: str) -> bool:
    return await repositories.update_checkout(place, old, sha) if place and old else False


def _note(job: CodingJob, place: RepositoryInfo | None, updated: bool) -> str | None:
    if place is not None and not updated:
        return f"{place.work_tree}: the branch moved and the files there were left as they are; `git status` shows the difference"
    return job.target.note


def own_ref(run_id: str) -> str:
    """Where a result goes that must not touch a branch of the user's."""
    return f"{HEADS}capataz/{run_id}"


def merge_note(own: str, target: str | None, why: str) -> str:
    """Says why the result is on its own branch and how to get it from there."""
    where = f"{short(target)} was not touched ({why}); " if target else f"{why}; "
    onto = f"on {short(target)}" if target else "on the branch that should have it"
    return f"{where}the result is on {short(own)}: {onto}, run `git merge {short(own)}`"
