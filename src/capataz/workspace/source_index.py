"""The source's index, read through a private copy: no lock, no refresh, no monitor, no filter."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace.bare import scratch
from capataz.workspace.index_file import Index, IndexEntry, parse_index


@dataclass(frozen=True, slots=True)
class SourceIndex:
    entries: dict[bytes, IndexEntry]           # stage 0 only
    unmerged: frozenset[bytes]
    written_ns: int                            # when the file was last written: entries as young are not trusted


def load_index(info: RepositoryInfo, scratch_folder: Path) -> SourceIndex:
    """A missing index is an empty one. Raises ``GitFailed`` for a damaged one."""
    file = info.git_dir / "index"
    digest_bytes = 32 if info.object_format == "sha256" else 20
    try:
        written_ns, data = file.stat().st_mtime_ns, file.read_bytes()
    except FileNotFoundError:
        return SourceIndex({}, frozenset(), 0)
    index = parse_index(data, digest_bytes)
    if index.needs_git:
        index = parse_index(_put_together(info, data, scratch_folder), digest_bytes)
    return _sorted_out(index, written_ns)


def _put_together(info: RepositoryInfo, data: bytes, scratch_folder: Path) -> bytes:
    """A split or sparse index, made whole by git in a GIT_DIR of ours."""
    with scratch(scratch_folder, info, []) as git:
        for shared in info.git_dir.glob("sharedindex.*"):
            shutil.copyfile(shared, git.git_dir / shared.name)
        (git.git_dir / "index").write_bytes(data)
        git.out("update-index", "--no-split-index", "--force-write-index", env={"GIT_WORK_TREE": os.fspath(git.git_dir)})
        return (git.git_dir / "index").read_bytes()


def _sorted_out(index: Index, written_ns: int) -> SourceIndex:
    return SourceIndex(
        {e.path: e for e in index.entries if e.stage == 0},
        frozenset(e.path for e in index.entries if e.stage),
        written_ns,
    )
