"""``capataz.coding``: the verbs of a coding job, each a journaled effect that the runtime performs.

Records in, records out. Paths, trees, suites and refs are the runtime's; a program only says what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from capataz.contracts.coding import (
    Cited,
    CodingJob,
    JobOptions,
    Measurement,
    PlanVerdict,
    Promotion,
    Rebased,
    Reference,
    WorkspaceRef,
)
from capataz.contracts.errors import OutputInvalid
from capataz.contracts.records import (
    Candidate,
    CandidateEnvelope,
    EvidenceManifest,
    ReviewOutput,
    SynthesisOutput,
    TestReport,
    WorkerOutput,
    WorkerRecord,
    WorkflowPlan,
    WorkItem,
)
from capataz.vm.checks import Check
from capataz.vm.runtime import current
from capataz.vm.sites import call_site
from capataz.vm.values import plain, problem, typed

__all__ = [
    "Check",
    "binding",
    "cite",
    "compose",
    "envelope",
    "fast_suites",
    "freeze",
    "job",
    "manifest",
    "measure",
    "plan_check",
    "plan_rules",
    "promote",
    "publish",
    "rebase",
    "test",
    "workspace",
]

T = TypeVar("T")


async def _effect(verb: str, type_: type[T], name: str = "", /, **given: Any) -> T:
    site = call_site(3)
    value = await current().request(f"coding.{verb}", name=name, input=plain(given), site=site)
    try:
        return typed(type_, value)
    except ValidationError as error:
        raise OutputInvalid(f"{site}: the recorded result of coding.{verb} is no valid {type_.__name__}: {problem(error)}") from error


async def plan_check(job: CodingJob, plan: WorkflowPlan, *, base_sha: str, repair: bool = False) -> PlanVerdict:
    """The plan as the runtime will use it: criteria and required suites are the job's, whatever the planner wrote.

    Raises ``PlanInvalid``, ``OverlappingScopes``, ``ScopeViolation``, ``UnknownSuite``.
    """
    return await _effect("plan_check", PlanVerdict, job=job, plan=plan, base_sha=base_sha, repair=repair)


async def workspace(job: CodingJob, item: WorkItem | None, *, base_sha: str, round: int) -> WorkspaceRef:
    """A private workspace for a task; ``item`` None: a read-only one, for planners and reviewers."""
    name = item.id if item is not None else ""
    return await _effect("workspace", WorkspaceRef, name, job=job, item=item, base_sha=base_sha, round=round)


async def freeze(job: CodingJob, workspace: WorkspaceRef, item: WorkItem, output: WorkerOutput, *, round: int) -> WorkerRecord:
    """A worker's files as the runtime found them. Raises the freeze's refusals (``ScopeViolation``, ``LinkEscape`` ...)."""
    return await _effect("freeze", WorkerRecord, item.id, job=job, workspace=workspace, item=item, output=output, round=round)


async def compose(job: CodingJob, records: list[WorkerRecord], *, base_sha: str, round: int) -> Candidate:
    """One candidate of all workers' trees; the order of ``records`` changes nothing. Raises ``CandidateConflict``."""
    return await _effect("compose", Candidate, job=job, records=records, base_sha=base_sha, round=round)


async def test(job: CodingJob, candidate: Candidate, *, suite_ids: list[str]) -> TestReport:
    """Runs suites on the candidate in fresh sandboxes. A failing suite is a report, not an error."""
    return await _effect("test", TestReport, job=job, candidate=candidate, suite_ids=suite_ids)


async def manifest(job: CodingJob, candidate: Candidate, report: TestReport) -> EvidenceManifest:
    """The exact evidence that reviewers see, bound by digests."""
    return await _effect("manifest", EvidenceManifest, job=job, candidate=candidate, report=report)


async def envelope(
    job: CodingJob,
    candidate: Candidate,
    report: TestReport,
    manifest: EvidenceManifest,
    synthesis: SynthesisOutput,
    reviews: Mapping[str, ReviewOutput],
) -> CandidateEnvelope:
    """What a person approves: all ids, digests, suites and reviews in one record."""
    return await _effect(
        "envelope",
        CandidateEnvelope,
        job=job,
        candidate=candidate,
        report=report,
        manifest=manifest,
        synthesis=synthesis,
        reviews=dict(reviews),
    )


async def promote(job: CodingJob, envelope: CandidateEnvelope, *, approval: Mapping[str, Any]) -> Promotion:
    """Moves the target ref by one compare-and-swap. Raises ``TargetMoved``, ``BindingBroken``: nothing was written then."""
    return await _effect("promote", Promotion, job=job, envelope=envelope, approval=dict(approval))


async def rebase(job: CodingJob, candidate: Candidate) -> Rebased:
    """The job on the target's present commit, and the candidate's changes on it. Raises ``CandidateConflict``."""
    return await _effect("rebase", Rebased, job=job, candidate=candidate)


# ---- for programs that begin without a job -----------------------------------------------------


async def job(
    repository: str, request: str, *, criteria: list[str] | None = None, base: str | None = None, options: JobOptions | None = None
) -> CodingJob:
    """A job on a repository, for a program that is not started by ``capataz do``. Its target is the run's own branch.

    ``repository``: relative to the folder that the run was started in. ``base``: any revision, else HEAD's commit.
    Raises ``RepositoryUnusable``, ``InvalidPolicy``.
    """
    return await _effect(
        "job", CodingJob, repository=repository, request=request, criteria=criteria or [], base=base, options=options or JobOptions()
    )


async def cite(job: CodingJob, references: list[Reference], *, sha: str) -> list[Cited]:
    """What stands at these places of a commit, in order; ``text`` is None where nothing does."""
    return await _effect("cite", list[Cited], job=job, references=references, sha=sha)


async def measure(job: CodingJob, command: str, *, sha: str, timeout_s: float = 600) -> Measurement:
    """Runs a shell command on a commit's files in a fresh sandbox without network. A failing command is no error."""
    return await _effect("measure", Measurement, job=job, command=command, sha=sha, timeout_s=timeout_s)


async def publish(job: CodingJob, candidate: Candidate, *, expected_old: str | None = None) -> Promotion:
    """Moves the run's own branch ``capataz/RUN`` to a candidate, and no other ref, by one compare-and-swap.

    ``expected_old``: where the branch is now; None: it must not exist. What else must have passed is the program's to say:
    a branch of yours moves only by ``promote``. Raises ``TargetMoved``: nothing was written then.
    """
    return await _effect("publish", Promotion, job=job, candidate=candidate, expected_old=expected_old)


# ---- checks of a submit ------------------------------------------------------------------------


def plan_rules(job: CodingJob, base_sha: str, repair: bool = False) -> Check:
    """A plan must keep the rules of scopes and suites; a broken one goes back once, then is the rule's own error."""
    return Check("plan", {"job": job, "base_sha": base_sha, "repair": repair})


def binding(candidate: Candidate, report: TestReport, manifest: EvidenceManifest, role: str) -> Check:
    """A review or synthesis must name this candidate and these digests; another goes back once, then ``ReviewNotBound``."""
    return Check("binding", {"candidate": candidate, "report": report, "manifest": manifest, "role": role})


def fast_suites(job: CodingJob, workspace: WorkspaceRef) -> Check:
    """The policy's fast suites on the worker's own files; failures go back twice, then the work is taken as it is."""
    return Check("fast_suites", {"job": job, "workspace": workspace}, attempts=2, then="accept")
