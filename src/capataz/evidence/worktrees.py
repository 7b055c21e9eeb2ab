"""Which work tree of a source has a branch checked out: the source's own, or a linked one beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from capataz.contracts.errors import CapatazError
from capataz.contracts.workspace import Repositories, RepositoryInfo

_MAX_HEAD_BYTES = 4096


async def holder(repositories: Repositories, info: RepositoryInfo, ref: str) -> RepositoryInfo | None:
    """The work tree whose HEAD is ``ref``; None: nobody has it checked out. Reads HEAD files only."""
    if info.head_ref == ref and info.work_tree is not None:
        return info
    for path in await asyncio.to_thread(_others, info):
        try:
            other = await repositories.inspect(path)
        except CapatazError:
            continue                           # gone, or no commit yet
        if other.head_ref == ref and other.work_tree is not None and other.common_dir == info.common_dir:
            return other
    return None


def _others(info: RepositoryInfo) -> list[Path]:
    """Folders of the repository's other work trees, as its common folder names them."""
    found: list[Path] = []
    if info.git_dir != info.common_dir and info.common_dir.name == ".git":
        found.append(info.common_dir.parent)
    for entry in sorted((info.common_dir / "worktrees").glob("*/gitdir")):
        try:
            text = entry.read_bytes()[:_MAX_HEAD_BYTES].strip()
        except OSError:
            continue
        path = Path(text.decode("utf-8", "surrogateescape")).parent
        if path.is_absolute() and path.is_dir():
            found.append(path)
    return found
