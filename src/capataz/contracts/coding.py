"""The coding port: what the kernel performs for ``capataz.coding``. Records in, records out; each call is a journaled effect.

An implementation must be idempotent: after a crash the same call is made again and must give an equal result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from capataz.contracts.policy import Policy
from capataz.contracts.records import (
    Candidate,
    CandidateEnvelope,
    CodingRequest,
    EvidenceManifest,
    Record,
    ReviewOutput,
    SynthesisOutput,
    TestReport,
    WorkerOutput,
    WorkerRecord,
    WorkflowPlan,
    WorkItem,
)


class Target(Record):
    """Where a promotion goes. ``expected_old`` is None for a ref that must not exist yet (``capataz/RUN``)."""

    ref: str                                   # full name, e.g. refs/heads/main
    expected_old: str | None
    note: str | None = None                    # why it is capataz/RUN and how to merge


class JobOptions(Record):
    max_rounds: int = 3
    max_workers: int = 4
    approval: Literal["ask", "yes", "no_promote"] = "ask"
    model: str | None = None
    max_turns: int = 40
    require_new_tests: bool = False
    sandbox: Literal["bubblewrap", "gvisor", "container", "local"] = "bubblewrap"
    trust_repository: bool = False


class CodingJob(Record):
    """The input of every coding program (``do``): the request with everything resolved at the start and pinned."""

    request: CodingRequest
    target: Target
    policy: Policy
    options: JobOptions = JobOptions()
    prompts: dict[str, str] = {}               # name -> template, resolved at the start; empty: the bundled ones


class WorkspaceRef(Record):
    """A workspace by name: plain data that a program passes to ``run(..., workspace=ws)``."""

    workspace_id: str
    repository: str                            # source path, as in CodingRequest
    base_sha: str                              # the commit the round builds on
    tree: str                                  # its tree at creation
    write_globs: list[str] = []                # empty: nothing may be written
    read_only: bool = False
    protected: list[str] = []
    hidden: list[str] = []


class PlanVerdict(Record):
    """``plan`` is the plan as the runtime will use it: criteria and required suites are the request's and policy's."""

    plan: WorkflowPlan
    differences: list[str] = []                # what the planner wrote otherwise, one sentence each
    globs: dict[str, list[str]] = {}           # task id -> effective write globs


class Refusal(Record):
    """A submit that breaks a rule: ``code`` is the error's, ``message`` one line for the model."""

    code: str
    message: str
    details: dict[str, Any] = {}


class Promotion(Record):
    ref: str
    old: str | None
    new: str
    note: str | None = None
    checked_out: bool = False                  # the target's files were updated too


class Reference(Record):
    """A place in a repository as an agent names it: lines count from 1; ``end_line`` None: one line."""

    path: str
    line: int
    end_line: int | None = None


class Cited(Record):
    """A reference as the runtime found it. ``text`` None: there is no such file, or not that many lines."""

    reference: Reference
    text: str | None


class Measurement(Record):
    """A command's end on a commit's files, in a fresh sandbox. ``reason``: exit, timeout, memory, pids, disk, killed, not_started."""

    exit_code: int
    reason: str
    output: str                                # what it printed last, both streams
    duration_s: float

    @property
    def passed(self) -> bool:
        return self.exit_code == 0 and self.reason == "exit"


class RebaseInput(Record):
    """What ``capataz rebase`` gives its program: a job whose target moved, and the candidate that was made for it."""

    job: CodingJob
    candidate: Candidate


class Rebased(Record):
    job: CodingJob
    record: WorkerRecord                       # the candidate's changes as one task's work on the job's new base


class Reason(Record):
    """Why a run failed or was declined: ``code`` is the error's snake-case name."""

    code: str
    message: str
    round: int | None = None
    task: str | None = None


class Failure(Record):
    """One thing that cost a round, as the repair planner sees it. ``task`` None: the candidate as a whole."""

    task: str | None
    code: str
    message: str


class Finding(Record):
    task_id: str
    summary: str
    unresolved_risks: list[str] = []


class ReportOutput(Record):
    """The result of a plan whose tasks are all read-only."""

    summary: str
    findings: list[Finding]
    unresolved_risks: list[str] = []


class CodingOutcome(Record):
    """What a coding program returns. The kernel takes the run's outcome and reason from it and stores ``result`` as the run's.

    ``kind`` marks it, so that any program that returns it ends its run in the same way.
    """

    kind: Literal["coding_outcome"] = "coding_outcome"
    outcome: Literal["promoted", "report", "failed", "declined"]
    reason: Reason | None = None
    rounds: int = 0                            # rounds begun
    envelope_digest: str | None = None         # of the last envelope
    promotion: Promotion | None = None
    result: SynthesisOutput | ReportOutput | None = None


Emit = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class CodingContext:
    """Where a coding effect runs: given by the kernel, never by the program."""

    run_id: str
    effect: str                                # key: the idempotency key
    started_at: float                          # the run's recorded start: commit dates
    emit: Emit


class CodingPort(Protocol):
    """Errors are the ``EvidenceError`` family, ``SandboxUnavailable``, ``UsageError``."""

    async def plan_check(self, ctx: CodingContext, job: CodingJob, plan: WorkflowPlan, *, base_sha: str, repair: bool) -> PlanVerdict: ...

    async def workspace(self, ctx: CodingContext, job: CodingJob, item: WorkItem | None, *, base_sha: str, round: int) -> WorkspaceRef:
        """``item`` None: a read-only workspace for planner and reviewers."""
        ...

    async def freeze(self, ctx: CodingContext, job: CodingJob, workspace: WorkspaceRef, item: WorkItem, output: WorkerOutput, *, round: int, end_tree: str | None) -> WorkerRecord:
        """``end_tree``: the tree that the agent's last snapshot recorded; None: the workspace's start tree."""
        ...

    async def compose(self, ctx: CodingContext, job: CodingJob, records: list[WorkerRecord], *, base_sha: str, round: int) -> Candidate: ...

    async def test(self, ctx: CodingContext, job: CodingJob, candidate: Candidate, *, suite_ids: list[str]) -> TestReport: ...

    async def manifest(self, ctx: CodingContext, job: CodingJob, candidate: Candidate, report: TestReport) -> EvidenceManifest: ...

    async def envelope(
        self,
        ctx: CodingContext,
        job: CodingJob,
        candidate: Candidate,
        report: TestReport,
        manifest: EvidenceManifest,
        synthesis: SynthesisOutput,
        reviews: dict[str, ReviewOutput],
        *,
        usage: dict[str, Any],
    ) -> CandidateEnvelope: ...

    async def promote(self, ctx: CodingContext, job: CodingJob, envelope: CandidateEnvelope, *, approval: dict[str, Any]) -> Promotion:
        """``approval``: ``{"value": "approve", "binding": envelope.sha256(), "by", "channel", ...}``. Raises ``BindingBroken``
        when it is for anything else, ``TargetMoved``; writes nothing then."""
        ...

    async def rebase(self, ctx: CodingContext, job: CodingJob, candidate: Candidate) -> Rebased:
        """The same job on the target's present commit, and the candidate's changes merged onto it. Raises ``CandidateConflict``."""
        ...

    async def job(self, ctx: CodingContext, *, repository: str, request: str, criteria: list[str], base: str | None, options: JobOptions) -> CodingJob:
        """A job for the run's own branch (``capataz/RUN``). Raises ``UsageError`` and its kin; needs no suite."""
        ...

    async def cite(self, ctx: CodingContext, job: CodingJob, references: list[Reference], *, sha: str) -> list[Cited]:
        """The lines that are at these places of a commit, in order."""
        ...

    async def measure(self, ctx: CodingContext, job: CodingJob, command: str, *, sha: str, timeout_s: float) -> Measurement:
        """Runs a shell command on a commit's files. Whatever it does is a measurement; no sandbox is ``SandboxUnavailable``."""
        ...

    async def publish(self, ctx: CodingContext, job: CodingJob, candidate: Candidate, *, expected_old: str | None) -> Promotion:
        """Moves the run's own branch by one compare-and-swap; no other ref. Raises ``TargetMoved``."""
        ...

    async def check(self, ctx: CodingContext, name: str, args: dict[str, Any], value: Any) -> Refusal | None:
        """A named check of a submit: ``plan`` (args: job, base_sha, repair), ``binding`` (args: candidate, report,
        manifest, role), ``fast_suites`` (args: job, workspace; runs on the workspace's present tree)."""
        ...

    async def cleanup(self, run_id: str) -> None:
        """Removes workspaces and the run's folders; idempotent. The run's own git objects stay until gc."""
        ...
