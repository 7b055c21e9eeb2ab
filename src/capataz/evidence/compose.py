"""Compose: one candidate from the workers' trees. The order in which workers finished changes nothing."""

from __future__ import annotations

import re
from typing import Any

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import bytes_to_json, digest
from capataz.contracts.coding import CodingContext, CodingJob
from capataz.contracts.errors import BindingBroken, CandidateConflict, NoChanges, PlanInvalid, ScopeViolation
from capataz.contracts.globs import matches_any
from capataz.contracts.records import Candidate, WorkerRecord
from capataz.contracts.workspace import RunRepository
from capataz.evidence.freeze import check_links
from capataz.evidence.scopes import show

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SUBJECT = 72


async def compose_candidate(
    run: RunRepository, blobs: Blobs, ctx: CodingContext, job: CodingJob, records: list[WorkerRecord], *,
    base_sha: str, round: int,
) -> Candidate:
    """Merges and commits. Raises ``CandidateConflict``, ``NoChanges`` (nothing differs from the original base),
    ``ScopeViolation`` and ``LinkEscape`` for what only the merge brought about."""
    ordered = _ordered(records, base_sha)
    base = await run.tree_of(base_sha)
    tree = await merge_trees(run, base, ordered)
    original = job.request.base_sha
    original_tree = await run.tree_of(original)
    if tree == original_tree:
        raise NoChanges("the tasks that should write left nothing changed", tasks=[r.task_id for r in ordered])
    changes = await run.changes(original_tree, tree)
    changed = sorted(c.path for c in changes)
    _protected(changed, job)
    await check_links(run, original_tree, tree, changes, task=None)
    sha = await run.commit(tree, [base_sha], message(ctx, job, round), at=float(int(ctx.started_at)))
    diff_uri = await blobs.put(await run.diff(original_tree, tree))
    fields: dict[str, Any] = {
        "sha": sha, "tree": tree, "base_sha": base_sha, "original_base_sha": original, "round": round,
        "changed_files": changed, "diff_uri": diff_uri,
    }
    return Candidate(id="c" + digest({"run": ctx.run_id, **fields})[:20], **fields)


def _ordered(records: list[WorkerRecord], base_sha: str) -> list[WorkerRecord]:
    ordered = sorted(records, key=lambda r: r.task_id)
    ids = [r.task_id for r in ordered]
    if not ids or len(set(ids)) != len(ids):
        raise PlanInvalid("compose needs at least one record, and one of each task", tasks=ids)
    strange = [r.task_id for r in ordered if r.base_sha != base_sha]
    if strange:
        raise BindingBroken(f"the record of task {strange[0]} is for another base than {base_sha}", tasks=strange)
    return ordered


async def merge_trees(run: RunRepository, base: str, ordered: list[WorkerRecord]) -> str:
    """Three-way merges, one record after the other, each on the round's base. Raises ``CandidateConflict``."""
    tree = base
    merged: list[WorkerRecord] = []
    for record in ordered:
        if record.tree == base:
            continue
        if tree in (base, record.tree):
            tree = record.tree
        else:
            result = await run.merge(base, tree, record.tree)
            if result.tree is None:
                raise _conflict(merged, record, result.conflicts)
            tree = result.tree
        merged.append(record)
    return tree


def _conflict(merged: list[WorkerRecord], record: WorkerRecord, conflicts: tuple[tuple[bytes, str], ...]) -> CandidateConflict:
    paths = sorted({path for path, _ in conflicts})
    others = [r.task_id for r in merged if _touches(r, paths)] or [r.task_id for r in merged]
    names = ", ".join(show(p) for p in paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    return CandidateConflict(
        f"the work of {' and '.join(others)} and of {record.task_id} does not merge at {names}",
        paths=[bytes_to_json(p) for p in paths], tasks=[*others, record.task_id],
        conflicts=[{"path": bytes_to_json(p), "kind": kind} for p, kind in conflicts[:100]],
    )


def _touches(record: WorkerRecord, paths: list[bytes]) -> bool:
    """Whether the record changed one of the paths, or something above or below it (a file against a folder)."""
    return any(c == p or c.startswith(p + b"/") or p.startswith(c + b"/") for c in record.changed_files for p in paths)


def _protected(changed: list[bytes], job: CodingJob) -> None:
    bad = [p for p in changed if matches_any(job.policy.scopes.protected, p)]
    if bad:
        raise ScopeViolation(f"{show(bad[0])} is protected and the merged work changes it", paths=[bytes_to_json(p) for p in bad])


def message(ctx: CodingContext, job: CodingJob, round: int) -> str:
    """The commit's message: a function of the request, the run and the round alone."""
    text = _CONTROL.sub(" ", job.request.request).encode("utf-8", "replace").decode("utf-8").strip()
    first = text.splitlines()[0].strip() if text else "Work of a run"
    subject = first if len(first) <= _SUBJECT else first[: _SUBJECT - 1].rstrip() + "…"
    body = f"{text[:4000]}\n\n" if text != subject else ""
    return f"{subject}\n\n{body}Capataz-Run: {ctx.run_id}\nCapataz-Round: {round}\n"
