"""The start of a coding job: everything resolved and pinned before a model is asked anything."""

from __future__ import annotations

from pathlib import Path

from capataz.contracts.coding import CodingJob, JobOptions, Target
from capataz.contracts.errors import CandidateConflict, UsageError
from capataz.contracts.policy import Policy
from capataz.contracts.records import Candidate, CodingRequest, WorkerOutput, WorkerRecord
from capataz.contracts.workspace import Repositories, RepositoryInfo, RunRepository
from capataz.evidence.policy import resolve_policy
from capataz.evidence.promotion import merge_note, own_ref
from capataz.evidence.refs import HEADS, branch_ref, short
from capataz.evidence.scopes import show
from capataz.evidence.worktrees import holder


async def prepare_job(
    repositories: Repositories,
    run_id: str,
    *,
    repo: str | Path,
    request: str,
    criteria: list[str] | tuple[str, ...] = (),
    base: str | None = None,
    target: str | None = None,
    policy_file: Path | None = None,
    options: JobOptions | None = None,
) -> CodingJob:
    """The job that ``capataz do`` starts. Raises ``UsageError`` and its kin (``RepositoryUnusable``, ``InvalidPolicy``,
    ``NoSuites``); nothing is left on disk then."""
    text, wanted = _request(request, criteria)
    options = options or JobOptions()
    if options.sandbox == "local" and not options.trust_repository:
        raise UsageError("--sandbox local isolates nothing; add --trust-repository if you trust this repository")
    info = await repositories.inspect(repo)
    named = branch_ref(target) if target is not None else None
    base_sha = await _base(repositories, info, base, named)
    try:
        run = await repositories.open_run(run_id, info)
        policy = await resolve_policy(run, await run.tree_of(base_sha), policy_file)
        place = await _target(repositories, info, run_id, policy, base_sha=base_sha, named=named)
    except BaseException:
        await repositories.remove_run(run_id, keep_objects=False)
        raise
    coding = CodingRequest(repository=str(info.path), base_sha=base_sha, request=text, success_criteria=wanted)
    return CodingJob(request=coding, target=place, policy=policy, options=options)


def _request(request: str, criteria: list[str] | tuple[str, ...]) -> tuple[str, list[str]]:
    text = request.replace("\0", "").strip()
    if not text:
        raise UsageError('the request is empty; write for example capataz do "Add a --json flag to the list command"')
    wanted = [c.replace("\0", "").strip() for c in criteria]
    if not all(wanted):
        raise UsageError("a criterion is empty; write for example --criterion 'the suite passes'")
    return text, wanted or [text]


async def _base(repositories: Repositories, info: RepositoryInfo, base: str | None, named: str | None) -> str:
    if base is not None:
        return await repositories.resolve(info, base)
    present = await repositories.ref(info, named) if named else None
    return present or info.head_sha


async def _target(
    repositories: Repositories, info: RepositoryInfo, run_id: str, policy: Policy, *, base_sha: str, named: str | None
) -> Target:
    """The checked-out branch, unless the policy names another, HEAD is detached or it is dirty."""
    own = own_ref(run_id)
    if policy.publish.branch:
        ref = HEADS + policy.publish.branch.replace("{run}", run_id)
        note = merge_note(ref, named or info.head_ref, "the policy sends results to a branch of their own")
        return await _existing(repositories, info, ref, base_sha, note)
    ref = named or info.head_ref
    if ref is None:
        return Target(ref=own, expected_old=None, note=merge_note(own, None, "HEAD is detached"))
    place = await holder(repositories, info, ref)
    dirty = await repositories.dirty(place) if place else None
    if dirty:
        return Target(ref=own, expected_old=None, note=merge_note(own, ref, dirty))
    if named is None and base_sha != info.head_sha:
        why = f"--base is not its present commit {info.head_sha[:12]}"
        return Target(ref=own, expected_old=None, note=merge_note(own, ref, why))
    return await _existing(repositories, info, ref, base_sha, None)


async def _existing(repositories: Repositories, info: RepositoryInfo, ref: str, base_sha: str, note: str | None) -> Target:
    """A result built on anything but the target's present commit would drop commits, or could not be compared and swapped."""
    present = await repositories.ref(info, ref)
    if present is not None and present != base_sha:
        raise UsageError(
            f"the target {short(ref)} is at {present[:12]}, the base is {base_sha[:12]}: the result would drop commits; "
            "leave out --base, or name a branch that does not exist yet"
        )
    return Target(ref=ref, expected_old=present, note=note)


async def own_job(
    repositories: Repositories, run_id: str, *, repo: str, request: str, criteria: list[str], base: str | None, options: JobOptions
) -> CodingJob:
    """A job whose result goes to ``capataz/RUN``; it may stand beside others of its run. Raises as ``prepare_job`` does."""
    text, wanted = _request(request, criteria)
    info = await repositories.inspect(repo)
    base_sha = await repositories.resolve(info, base) if base is not None else info.head_sha
    run = await repositories.open_run(run_id, info)
    policy = await resolve_policy(run, await run.tree_of(base_sha), suites=False)
    own = own_ref(run_id)
    target = Target(ref=own, expected_old=None, note=merge_note(own, None, "the program gives its result a branch of its own"))
    coding = CodingRequest(repository=str(info.path), base_sha=base_sha, request=text, success_criteria=wanted)
    return CodingJob(request=coding, target=target, policy=policy, options=options)


async def rebased(repositories: Repositories, run_id: str, job: CodingJob) -> CodingJob:
    """The same job on the target's present commit (its own branch: on HEAD's). A policy of the repository's own is read anew."""
    info = await repositories.inspect(job.request.repository)
    present = await repositories.ref(info, job.target.ref)
    base_sha = present or info.head_sha
    policy = job.policy
    if policy.source != "file":
        run = await repositories.open_run(run_id, info)
        policy = await resolve_policy(run, await run.tree_of(base_sha))
    request = job.request.model_copy(update={"base_sha": base_sha})
    target = job.target.model_copy(update={"expected_old": present})
    return job.model_copy(update={"request": request, "target": target, "policy": policy})


async def moved(run: RunRepository, job: CodingJob, candidate: Candidate) -> WorkerRecord:
    """A candidate's changes on the base of ``job``, by a three-way merge. Raises ``CandidateConflict`` with the paths."""
    base = await run.tree_of(job.request.base_sha)
    result = await run.merge(await run.tree_of(candidate.original_base_sha), base, candidate.tree)
    if result.tree is None:
        paths = [show(path) for path, _ in result.conflicts]
        raise CandidateConflict(
            f"the candidate does not merge with what the target has become, at {', '.join(sorted(set(paths))[:5])}", paths=paths
        )
    changed = sorted(change.path for change in await run.changes(base, result.tree))
    output = WorkerOutput(status="completed", summary=f"Moved candidate {candidate.sha[:12]} onto {job.request.base_sha[:12]}.")
    return WorkerRecord(
        task_id="rebase", round=0, workspace_id="rebase", base_sha=job.request.base_sha, tree=result.tree, changed_files=changed,
        output=output,
    )
