"""Into the source: objects first, then one compare-and-swap of one ref. Nothing of the source's configuration runs."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from capataz.contracts.errors import GitFailed, RepositoryUnusable, TargetMoved, UsageError
from capataz.contracts.faults import Faults
from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace.bare import scratch
from capataz.workspace.git import Git, GitResult
from capataz.workspace.inspection import config_value, ref, source_git
from capataz.workspace.ownership import Owner

_LOCK_WAIT_S = 10.0
_SHARED = {"group", "all", "true", "1", "2", "everybody", "world"}


def publish(
    run_git_dir: Path, info: RepositoryInfo, sha: str, *, name: str, expected_old: str | None, scratch_folder: Path, faults: Faults
) -> None:
    """Idempotent: a ref that already holds ``sha`` is fine. Raises ``TargetMoved`` (nothing written but loose objects)."""
    _check_name(run_git_dir, name)
    now = ref(info, name)
    if now != sha:
        if now != expected_old:
            raise _moved(name, expected_old, now)
        _copy_objects(run_git_dir, info, sha, [s for s in (expected_old, info.head_sha) if s], scratch_folder)
    faults.reach("promote.before")
    if now != sha:
        _swap(info, sha, name=name, expected_old=expected_old)
    faults.reach("promote.after")


def _check_name(git_dir: Path, name: str) -> None:
    if not name.startswith("refs/") or Git(git_dir).run("check-ref-format", name).code != 0:
        raise UsageError(f"{name!r} is no usable ref; name a branch, for example refs/heads/main")


def _moved(name: str, expected: str | None, found: str | None) -> TargetMoved:
    return TargetMoved(
        f"{name} is at {found or 'nothing'}, expected {expected or 'nothing'}; nothing was written",
        ref=name, expected=expected, found=found,
    )


# ---- objects ----


def _copy_objects(run_git_dir: Path, info: RepositoryInfo, sha: str, have: list[str], folder: Path) -> None:
    """Packs what the run made and unpacks it into the source's object folder, by a GIT_DIR of ours: its hooks,
    configuration and alternates take no part."""
    wanted = "".join([f"{sha}\n", *(f"^{h}\n" for h in dict.fromkeys(have))])
    pack = Git(run_git_dir).out("pack-objects", "--revs", "--local", "--stdout", "-q", "--delta-base-offset", stdin=wanted.encode())
    objects = info.common_dir / "objects"
    owner = Owner.of(objects)
    with scratch(folder, info, []) as git:
        writer = Git(git.git_dir, {"GIT_OBJECT_DIRECTORY": str(objects)}, _storage_config(info))
        # Few objects go in loose, as git itself does, lest every run leaves a pack. For another user's repository a pack:
        # loose objects could leave folders that their owner may not write into.
        if int.from_bytes(pack[8:12], "big") < 100 and owner.is_us:
            result = writer.run("unpack-objects", "-q", stdin=pack)
        else:
            result = writer.run("index-pack", "--stdin", stdin=pack)
            _give_pack(owner, objects / "pack", result)
    if result.code != 0:
        raise _unwritable(info, result)


def _give_pack(owner: Owner, folder: Path, result: GitResult) -> None:
    words = result.stdout.decode("ascii", "replace").split()
    if result.code == 0 and words:
        for suffix in ("pack", "idx", "rev"):
            owner.give(folder / f"pack-{words[-1]}.{suffix}")


def _storage_config(info: RepositoryInfo) -> dict[str, str]:
    config = {"core.fsync": "objects,derived-metadata,reference", "core.fsyncMethod": "batch"}
    shared = config_value(info, "core.sharedRepository")
    if shared is not None and (shared.lower() in _SHARED or re.fullmatch(r"0[0-7]{3}", shared)):
        config["core.sharedRepository"] = shared
    return config


def _unwritable(info: RepositoryInfo, result: GitResult) -> Exception:
    words = result.words()
    if re.search(r"permission|read-only|insufficient", words, re.IGNORECASE) or not os.access(info.common_dir / "objects", os.W_OK):
        return RepositoryUnusable(f"{info.path}: the repository cannot be written by this user ({words}); make it writable and resume")
    return GitFailed(f"{info.path}: the objects cannot be stored: {words}", retryable=True)


# ---- the ref ----


def _swap(info: RepositoryInfo, sha: str, *, name: str, expected_old: str | None) -> None:
    old = expected_old or "0" * len(sha)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        result = source_git(info).run("update-ref", "-m", "capataz: promote", name, sha, old)
        found = ref(info, name)
        if found == sha:
            _give_ref(info, name)
            return
        if found != expected_old:
            raise _moved(name, expected_old, found)
        if result.code == 0:
            raise TargetMoved(f"{name} was set back while it was promoted", ref=name, expected=expected_old, found=found)
        if "File exists" not in result.words() or time.monotonic() > deadline:
            raise _refused(info, name, result)
        time.sleep(0.05)                           # another git holds the ref's lock for a moment


def _refused(info: RepositoryInfo, name: str, result: GitResult) -> Exception:
    words = result.words()
    if "File exists" in words:
        return GitFailed(f"{info.path}: {name} is locked by another git process ({words})", retryable=True)
    if re.search(r"permission|read-only", words, re.IGNORECASE):
        return RepositoryUnusable(f"{info.path}: {name} cannot be written by this user ({words}); make it writable and resume")
    return RepositoryUnusable(f"{info.path}: {name} cannot be written: {words}")


def _give_ref(info: RepositoryInfo, name: str) -> None:
    for top in (info.common_dir, info.common_dir / "logs"):
        owner = Owner.of(top)
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            owner.give(top.joinpath(*parts[:end]))


# ---- where branches are checked out ----


def checked_out_at(info: RepositoryInfo, name: str) -> Path | None:
    """The folder of another working tree of this repository that has the branch checked out; None: none has."""
    own = info.work_tree.resolve() if info.work_tree else None
    result = source_git(info).run("worktree", "list", "--porcelain", "-z")
    if result.code != 0:
        raise RepositoryUnusable(f"{info.path}: its working trees cannot be listed: {result.words()}")
    for block in result.stdout.split(b"\0\0"):
        parts = [line.partition(b" ") for line in block.split(b"\0") if line]
        fields = {key: value for key, _, value in parts}
        folder = Path(os.fsdecode(fields.get(b"worktree", b"")))
        if fields.get(b"branch") == name.encode() and b"bare" not in fields and folder.resolve() != own:
            return folder
    return None
