"""The workspace port: trusted git, trees, overlays. Paths are bytes; SHAs are full hex object names (SHA-1 or SHA-256)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from capataz.contracts.sandbox import WorkspaceMount


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryInfo:
    """A source repository as it was looked at; nothing in it was executed or written."""

    path: Path                                 # what the person named, resolved
    git_dir: Path
    common_dir: Path                           # differs from git_dir in a linked worktree
    work_tree: Path | None                     # None: bare
    head_ref: str | None                       # refs/heads/...; None: detached
    head_sha: str
    shallow: bool
    object_format: Literal["sha1", "sha256"]


@dataclass(frozen=True, slots=True)
class TreeEntry:
    mode: str                                  # 100644 100755 120000 160000 040000
    sha: str
    path: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """One difference of two trees. ``status``: A added, M modified, D deleted, T type changed (renames are A and D)."""

    status: Literal["A", "M", "D", "T"]
    path: bytes
    old_mode: str
    new_mode: str
    old_sha: str
    new_sha: str


@dataclass(frozen=True, slots=True)
class MergeResult:
    tree: str | None                           # None: conflict
    conflicts: tuple[tuple[bytes, str], ...]   # (path, one line that says what kind)


class Workspace(Protocol):
    """Private files over one tree."""

    @property
    def workspace_id(self) -> str: ...
    @property
    def mount(self) -> WorkspaceMount:
        """As it is now: a restore gives the workspace other folders."""
        ...
    @property
    def kind(self) -> Literal["overlay", "copy"]: ...

    async def snapshot(self) -> str:
        """The tree of the files as they are now (root ``.git`` left out, git-ignored files included, special files and
        embedded repositories too as far as git can name them: ``specials`` lists the rest). Cheap when nothing changed."""
        ...

    async def specials(self) -> list[tuple[bytes, str]]:
        """Paths that no tree can hold or that a freeze must refuse: (path, fifo | socket | device | embedded_repository | reserved)."""
        ...

    async def restore(self, tree: str) -> None:
        """Files become exactly ``tree``. Only while no sandbox session uses the workspace."""
        ...

    async def remove(self) -> None: ...


class RunRepository(Protocol):
    """The run's own object store: a bare GIT_DIR whose alternates are the source's objects."""

    info: RepositoryInfo
    git_dir: Path

    async def tree_of(self, rev: str) -> str: ...
    async def entries(self, tree: str) -> list[TreeEntry]:
        """All blobs, links and gitlinks, recursively."""
        ...
    async def read(self, tree: str, path: bytes) -> bytes | None: ...
    async def sizes(self, shas: list[str]) -> dict[str, int]:
        """Sizes in bytes of these blobs, read without their contents."""
        ...
    async def changes(self, old_tree: str, new_tree: str) -> list[Change]: ...
    async def diff(self, old_tree: str, new_tree: str, *, binary: bool = True) -> bytes:
        """Full patch text, binary and mode changes named, odd names quoted by git, no external drivers. ``binary``: with
        whole binary patches, so that it applies; otherwise a binary change is named with both SHAs."""
        ...
    async def merge(self, base: str, ours: str, theirs: str) -> MergeResult:
        """Three-way, rename-aware merge of trees (``git merge-tree``), without drivers of the repository."""
        ...
    async def filtered(self, base_tree: str, tree: str, drop: list[bytes]) -> str:
        """``tree`` with the paths of ``drop`` put back to what ``base_tree`` has."""
        ...
    async def ignored(self, base_tree: str, paths: list[bytes]) -> set[bytes]:
        """Which of these new paths the base's ``.gitignore`` files and the built-in list ignore."""
        ...
    async def commit(self, tree: str, parents: list[str], message: str, *, at: float) -> str:
        """Author, committer and zone are fixed: equal inputs give an equal SHA."""
        ...
    async def checkout(self, tree: str) -> Path:
        """A shared read-only folder with exactly this tree (no filters), made once per tree."""
        ...
    async def workspace(self, workspace_id: str, tree: str, *, base_sha: str, writable: bool = True, hidden: list[str] | None = None) -> Workspace:
        """Opens the workspace, making it when it is missing. Fault points ``workspace.create.*``."""
        ...


class Repositories(Protocol):
    async def inspect(self, path: str | Path) -> RepositoryInfo:
        """Raises ``RepositoryUnusable``."""
        ...
    async def resolve(self, info: RepositoryInfo, rev: str) -> str:
        """A commit's SHA. Raises ``RepositoryUnusable`` for an unknown revision."""
        ...
    async def ref(self, info: RepositoryInfo, name: str) -> str | None: ...
    async def checked_out_at(self, info: RepositoryInfo, name: str) -> Path | None:
        """The folder of another working tree of the repository that has the branch checked out; None: none has."""
        ...
    async def dirty(self, info: RepositoryInfo, new_tree: str | None = None) -> str | None:
        """Why the checked-out branch may not be updated (a tracked file or the index differs from HEAD, or an untracked
        path would be overwritten by ``new_tree``); None: clean. Read without filters, monitors or hooks; writes nothing."""
        ...
    async def use_copies(self, run_id: str) -> None:
        """The run's workspaces will be plain copies: its sandbox mounts no overlays."""
        ...
    async def open_run(self, run_id: str, info: RepositoryInfo) -> RunRepository: ...
    async def run_on(self, run_id: str, path: str | Path) -> RunRepository:
        """``open_run`` on the source at ``path``, which is inspected only the first time: its ``info.head_sha`` may be old."""
        ...
    async def publish(self, run: RunRepository, sha: str, *, ref: str, expected_old: str | None) -> None:
        """Copies the objects into the source and moves the ref by one compare-and-swap. Raises ``TargetMoved``."""
        ...
    async def update_checkout(self, info: RepositoryInfo, old_sha: str, new_sha: str) -> bool:
        """Brings the index and files of a clean checkout from old to new without filters or hooks; finishes what a
        crash left half done; False if it is not checked out or somebody changed it."""
        ...
    async def copy_run(self, run_id: str, new_run_id: str) -> None:
        """A new run gets all objects of another; nothing to copy is no error."""
        ...
    async def remove_run(self, run_id: str, *, keep_objects: bool = True) -> None: ...
    def leftovers(self) -> AsyncIterator[dict[str, Any]]:
        """Folders of runs, workspaces and checkouts on disk, for gc."""
        ...
    async def remove_leftover(self, item: dict[str, Any]) -> None:
        """Removes what ``leftovers`` gave. The caller knows that nothing uses it."""
        ...
