"""The coding port: each verb of ``capataz.coding`` as a call that may be made again after a crash with an equal result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import digest
from capataz.contracts.clock import Clock, SystemClock
from capataz.contracts.coding import (
    Cited,
    CodingContext,
    CodingJob,
    JobOptions,
    Measurement,
    PlanVerdict,
    Promotion,
    Rebased,
    Reference,
    Refusal,
    WorkspaceRef,
)
from capataz.contracts.errors import EvidenceError, UsageError, WorkerIncomplete
from capataz.contracts.faults import Faults, NoFaults
from capataz.contracts.policy import Suite
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
from capataz.contracts.sandbox import Sandbox
from capataz.contracts.workspace import Repositories, RunRepository
from capataz.evidence.binding import bound_values, check_answer, parse_answer
from capataz.evidence.cite import cited
from capataz.evidence.compose import compose_candidate
from capataz.evidence.envelope import make_envelope
from capataz.evidence.environment import Environments, EnvironmentSpec
from capataz.evidence.freeze import freeze_tree
from capataz.evidence.job import moved, own_job, rebased
from capataz.evidence.manifest import make_manifest
from capataz.evidence.plan import check_plan
from capataz.evidence.promotion import own_ref, publish, verify
from capataz.evidence.suites import Bench, run_suite
from capataz.evidence.testing import Tester, base_scripts, keep, suites_to_run
from capataz.evidence.text import readable

_FAST_TAIL = 1500
_MEASURED = 64 << 10


async def _always(options: JobOptions) -> bool:
    return True


class EvidenceService:
    """Implements ``CodingPort`` on the repository, sandbox and blob ports. Holds no state of a run."""

    def __init__(
        self,
        repositories: Repositories,
        sandbox_for: Callable[[JobOptions], Awaitable[Sandbox]],
        blobs: Blobs,
        home: Path,
        clock: Clock | None = None,
        faults: Faults | None = None,
        overlays: Callable[[JobOptions], Awaitable[bool]] = _always,
    ) -> None:
        self._repositories = repositories
        self._sandbox_for = sandbox_for
        self._blobs = blobs
        self._clock = clock or SystemClock()
        self._faults = faults or NoFaults()
        self._overlays = overlays
        self._environments = Environments(sandbox_for, home)
        self._cache = home / "cache" / "testids"

    async def _run(self, run_id: str, job: CodingJob) -> RunRepository:
        return await self._repositories.run_on(run_id, job.request.repository)

    async def environment(self, run_id: str, job: CodingJob) -> EnvironmentSpec:
        """What agents' and suites' sandboxes of this job get alike. Makes the set-up layer when it is missing."""
        return await self._environments.of(await self._run(run_id, job), job)

    # ---- plan, workspace, freeze, compose ----

    async def plan_check(
        self, ctx: CodingContext, job: CodingJob, plan: WorkflowPlan, *, base_sha: str, repair: bool
    ) -> PlanVerdict:
        run = await self._run(ctx.run_id, job)
        files = [e.path for e in await run.entries(await run.tree_of(base_sha))]
        return check_plan(job, plan, files)

    async def workspace(
        self, ctx: CodingContext, job: CodingJob, item: WorkItem | None, *, base_sha: str, round: int
    ) -> WorkspaceRef:
        run = await self._run(ctx.run_id, job)
        await self._environments.of(run, job)
        tree = await run.tree_of(base_sha)
        read_only = item is None or item.read_only
        workspace_id = f"r{round}-{item.id if item else 'read'}-{digest([ctx.run_id, ctx.effect])[:10]}"
        hidden = list(job.policy.scopes.hidden)
        # The local backend cannot mount anything read-only; the freeze refuses what a read-only task changed.
        writable = not read_only or job.options.sandbox == "local"
        made = await run.workspace(workspace_id, tree, base_sha=base_sha, writable=writable, hidden=hidden)
        ctx.emit("workspace.created", {"workspace_id": workspace_id, "tree": tree, "kind": made.kind})
        return WorkspaceRef(
            workspace_id=workspace_id,
            repository=job.request.repository,
            base_sha=base_sha,
            tree=tree,
            write_globs=list(item.write_globs) if item else [],
            read_only=read_only,
            protected=list(job.policy.scopes.protected),
            hidden=hidden,
        )

    async def freeze(
        self, ctx: CodingContext, job: CodingJob, workspace: WorkspaceRef, item: WorkItem, output: WorkerOutput, *, round: int,
        end_tree: str | None,
    ) -> WorkerRecord:
        self._faults.reach("freeze.before")
        if output.status != "completed":
            raise WorkerIncomplete(f"task {item.id} is {output.status}: {output.summary}", task=item.id)
        run = await self._run(ctx.run_id, job)
        opened = await run.workspace(
            workspace.workspace_id, workspace.tree, base_sha=workspace.base_sha, writable=not workspace.read_only,
            hidden=workspace.hidden,
        )
        specials = await opened.specials()
        frozen = await freeze_tree(run, job, workspace, task=item.id, tree=end_tree or workspace.tree, specials=specials)
        record = WorkerRecord(
            task_id=item.id, round=round, workspace_id=workspace.workspace_id, base_sha=workspace.base_sha, tree=frozen.tree,
            changed_files=frozen.changed_files, output=output,
        )
        self._faults.reach("freeze.after")
        return record

    async def compose(
        self, ctx: CodingContext, job: CodingJob, records: list[WorkerRecord], *, base_sha: str, round: int
    ) -> Candidate:
        self._faults.reach("compose.before")
        run = await self._run(ctx.run_id, job)
        candidate = await compose_candidate(run, self._blobs, ctx, job, records, base_sha=base_sha, round=round)
        self._faults.reach("compose.after")
        return candidate

    # ---- test, manifest, envelope ----

    async def _bench(self, ctx: CodingContext, job: CodingJob) -> Bench:
        run = await self._run(ctx.run_id, job)
        base = await run.tree_of(job.request.base_sha)
        return Bench(
            run=run, sandbox=await self._sandbox_for(job.options), environment=await self._environments.of(run, job),
            base_sha=job.request.base_sha, base=base, emit=ctx.emit, scripts=await base_scripts(run, base),
        )

    async def test(self, ctx: CodingContext, job: CodingJob, candidate: Candidate, *, suite_ids: list[str]) -> TestReport:
        suites = suites_to_run(job.policy, suite_ids)
        tester = Tester(await self._bench(ctx, job), ctx, job, blobs=self._blobs, cache=self._cache, faults=self._faults)
        report = await tester.report(candidate, suites)
        await keep(self._blobs, report)
        return report

    async def manifest(self, ctx: CodingContext, job: CodingJob, candidate: Candidate, report: TestReport) -> EvidenceManifest:
        made = await make_manifest(await self._run(ctx.run_id, job), self._blobs, candidate, report)
        await keep(self._blobs, made)
        return made

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
    ) -> CandidateEnvelope:
        return make_envelope(candidate, report, manifest, synthesis, reviews, usage)

    # ---- promotion ----

    async def promote(
        self, ctx: CodingContext, job: CodingJob, envelope: CandidateEnvelope, *, approval: dict[str, Any]
    ) -> Promotion:
        # What is published depends on what the source has now.
        run = await self._repositories.open_run(ctx.run_id, await self._repositories.inspect(job.request.repository))
        tree = await verify(run, self._blobs, job, envelope, approval)
        return await publish(self._repositories, run, ctx, job, envelope.candidate_sha, tree)

    async def rebase(self, ctx: CodingContext, job: CodingJob, candidate: Candidate) -> Rebased:
        anew = await rebased(self._repositories, ctx.run_id, job)
        return Rebased(job=anew, record=await moved(await self._run(ctx.run_id, job), anew, candidate))

    # ---- programs without a job ----

    async def job(
        self, ctx: CodingContext, *, repository: str, request: str, criteria: list[str], base: str | None, options: JobOptions
    ) -> CodingJob:
        if options.sandbox == "local" and not options.trust_repository:
            raise UsageError("the local sandbox isolates nothing; say trust_repository=True if you trust this repository")
        if not await self._overlays(options):
            await self._repositories.use_copies(ctx.run_id)
        return await own_job(
            self._repositories, ctx.run_id, repo=repository, request=request, criteria=criteria, base=base, options=options
        )

    async def cite(self, ctx: CodingContext, job: CodingJob, references: list[Reference], *, sha: str) -> list[Cited]:
        run = await self._run(ctx.run_id, job)
        return await cited(run, await run.tree_of(sha), references)

    async def measure(self, ctx: CodingContext, job: CodingJob, command: str, *, sha: str, timeout_s: float) -> Measurement:
        bench = await self._bench(ctx, job)
        done = await run_suite(bench, Suite(id="measure", command=command, timeout=timeout_s), await bench.run.tree_of(sha))
        output = readable(done.log[-_MEASURED:])[0]
        return Measurement(exit_code=done.exit_code, reason=done.reason, output=output, duration_s=done.duration_s)

    async def publish(self, ctx: CodingContext, job: CodingJob, candidate: Candidate, *, expected_old: str | None) -> Promotion:
        run = await self._repositories.open_run(ctx.run_id, await self._repositories.inspect(job.request.repository))
        target = job.target.model_copy(update={"ref": own_ref(ctx.run_id), "expected_old": expected_old})
        own = job.model_copy(update={"target": target})
        return await publish(self._repositories, run, ctx, own, candidate.sha, await run.tree_of(candidate.sha))

    # ---- checks of submits ----

    async def check(self, ctx: CodingContext, name: str, args: dict[str, Any], value: Any) -> Refusal | None:
        checks = {"plan": self._check_plan, "binding": self._check_binding, "fast_suites": self._check_fast}
        if name not in checks:
            raise UsageError(f"no check {name!r}; there are {', '.join(checks)}")
        try:
            return await checks[name](ctx, args, value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(p) for p in first["loc"])
            return Refusal(code="output_invalid", message=f"{where}: {first['msg']}")
        except EvidenceError as error:
            return Refusal(code=error.code, message=error.message, details=error.details)

    async def _check_plan(self, ctx: CodingContext, args: dict[str, Any], value: Any) -> Refusal | None:
        job, plan = CodingJob.model_validate(args["job"]), WorkflowPlan.model_validate(_plain(value))
        await self.plan_check(ctx, job, plan, base_sha=args["base_sha"], repair=bool(args.get("repair")))
        return None

    async def _check_binding(self, ctx: CodingContext, args: dict[str, Any], value: Any) -> Refusal | None:
        values = bound_values(
            Candidate.model_validate(args["candidate"]),
            TestReport.model_validate(args["report"]),
            EvidenceManifest.model_validate(args["manifest"]),
        )
        return check_answer(parse_answer(args.get("role"), _plain(value)), values)

    async def _check_fast(self, ctx: CodingContext, args: dict[str, Any], value: Any) -> Refusal | None:
        job, ref = CodingJob.model_validate(args["job"]), WorkspaceRef.model_validate(args["workspace"])
        output = WorkerOutput.model_validate(_plain(value))
        suites = [s for s in job.policy.suites if s.fast]
        if output.status != "completed" or ref.read_only or not suites:
            return None
        bench = await self._bench(ctx, job)
        opened = await bench.run.workspace(ref.workspace_id, ref.tree, base_sha=ref.base_sha, hidden=ref.hidden)
        tree = await opened.snapshot()
        for suite in suites:
            result = await run_suite(bench, suite, tree)
            tail = readable(result.log[-_FAST_TAIL:])[0].strip()
            ctx.emit("suite.ended", {
                "suite": suite.id, "exit_code": result.exit_code, "duration_s": result.duration_s, "passed": result.passed,
                "artifact": await self._blobs.put(result.log), "candidate_id": None,
            })
            if not result.passed:
                how = f"exit code {result.exit_code}" if result.reason == "exit" else result.reason
                return Refusal(
                    code="fast_suite_failed",
                    message=f"suite {suite.id} fails on your files ({how}); mend it and submit again: {tail}",
                    details={"suite": suite.id, "exit_code": result.exit_code, "reason": result.reason},
                )
        return None

    async def cleanup(self, run_id: str) -> None:
        await self._repositories.remove_run(run_id)


def _plain(value: Any) -> Any:
    """A model of another process's making is checked again like any data."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
