"""Freeze: from the tree that a worker left to a record that may be composed, or a typed refusal with the path."""

from __future__ import annotations

from dataclasses import dataclass

from capataz.contracts.canonical import bytes_to_json
from capataz.contracts.coding import CodingJob, WorkspaceRef
from capataz.contracts.errors import (
    EmbeddedRepository,
    EvidenceError,
    FileTooLarge,
    LinkEscape,
    ReservedPath,
    ScopeViolation,
    SpecialFile,
)
from capataz.contracts.globs import matches_any
from capataz.contracts.workspace import Change, RunRepository
from capataz.evidence.links import new_escapes
from capataz.evidence.reserved import reserved_paths
from capataz.evidence.scopes import allowed, show

LINK = "120000"
GITLINK = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A tree that passed: ``tree`` without ignored new files, and what changed against the base."""

    tree: str
    changed_files: list[bytes]


async def freeze_tree(
    run: RunRepository, job: CodingJob, workspace: WorkspaceRef, *, task: str, tree: str, specials: list[tuple[bytes, str]]
) -> Frozen:
    """Raises the ``EvidenceError`` of the first rule that the tree breaks."""
    base = workspace.tree
    changes = await run.changes(base, tree)
    new = [c.path for c in changes if c.status == "A"]
    dropped = await run.ignored(base, sorted({*new, *map(_judged, specials)}))
    kept = [c for c in changes if not (c.status == "A" and c.path in dropped)]
    _specials([s for s in specials if _judged(s) not in dropped], task)
    _names(kept, task)
    _scope(kept, workspace, task)
    ignored = [c.path for c in changes if c.status == "A" and c.path in dropped]
    final = await run.filtered(base, tree, ignored) if ignored else tree
    await check_links(run, base, final, kept, task=task)
    await _sizes(run, kept, job.policy.limits.max_file, task)
    return Frozen(tree=final, changed_files=sorted(c.path for c in kept))


def _judged(special: tuple[bytes, str]) -> bytes:
    """The path by which ``.gitignore`` judges it: patterns such as ``node_modules/`` are about what lies in a folder."""
    path, kind = special
    return path + b"/HEAD" if kind == "embedded_repository" else path


def _refuse(error: type[EvidenceError], task: str | None, paths: list[bytes], text: str) -> EvidenceError:
    """An error that names the first path in its message and all of them in its details."""
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    who = f"task {task}: " if task else ""
    return error(f"{who}{show(paths[0])}{more} {text}", task=task, paths=[bytes_to_json(p) for p in paths[:100]])


def _specials(specials: list[tuple[bytes, str]], task: str) -> None:
    kinds: dict[str, list[bytes]] = {}
    for path, kind in sorted(specials):
        kinds.setdefault(kind, []).append(path)
    if "reserved" in kinds:
        raise _refuse(ReservedPath, task, kinds["reserved"], "is named like .git; no file of a tree may be")
    if "embedded_repository" in kinds:
        raise _refuse(EmbeddedRepository, task, kinds["embedded_repository"], "is a git repository inside the tree; remove it")
    for kind, paths in sorted(kinds.items()):
        raise _refuse(SpecialFile, task, paths, f"is a {kind}; only files, folders and links can be kept")


def _names(changes: list[Change], task: str) -> None:
    reserved = reserved_paths([c.path for c in changes if c.status != "D"])
    if reserved:
        raise _refuse(ReservedPath, task, reserved, "has a part named like .git; no file of a tree may have")
    links = [c.path for c in changes if GITLINK in (c.old_mode, c.new_mode)]
    if links:
        raise _refuse(EmbeddedRepository, task, links, "is a submodule or repository; its commit must stay as it is")


def _scope(changes: list[Change], workspace: WorkspaceRef, task: str) -> None:
    if workspace.read_only and changes:
        raise _refuse(ScopeViolation, task, [c.path for c in changes], "was changed by a read-only task")
    guarded = [c.path for c in changes if matches_any(workspace.protected, c.path)]
    if guarded:
        raise _refuse(ScopeViolation, task, guarded, "is protected by the policy and was changed")
    outside = [c.path for c in changes if not allowed(c.path, workspace.write_globs, workspace.protected)]
    if outside:
        raise _refuse(ScopeViolation, task, outside, f"is outside the task's scope ({', '.join(workspace.write_globs)})")


async def check_links(run: RunRepository, base: str, tree: str, changes: list[Change], *, task: str | None) -> None:
    """No link that is new, changed, or newly redirected leaves the tree. Raises ``LinkEscape``."""
    if not any(LINK in (c.old_mode, c.new_mode) for c in changes):
        return
    bad = new_escapes(await _links(run, base), await _links(run, tree))
    if bad:
        raise _refuse(LinkEscape, task, bad, "is a link that leaves the tree; make it point inside, by a relative path")


async def _links(run: RunRepository, tree: str) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for entry in await run.entries(tree):
        if entry.mode == LINK:
            found[entry.path] = await run.read(tree, entry.path) or b""
    return found


async def _sizes(run: RunRepository, changes: list[Change], limit: int, task: str) -> None:
    files = [c for c in changes if c.new_mode.startswith("100") and c.new_sha != c.old_sha]
    if not files:
        return
    sizes = await run.sizes(sorted({c.new_sha for c in files}))
    large = [c.path for c in files if sizes.get(c.new_sha, 0) > limit]
    if large:
        raise _refuse(FileTooLarge, task, large, f"is larger than {limit} bytes (limits.max_file of the policy)")
