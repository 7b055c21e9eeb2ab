"""The run's own object store, and everything that is computed on trees."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Literal

from capataz.contracts.errors import GitFailed
from capataz.contracts.faults import Faults
from capataz.contracts.globs import compile_glob
from capataz.contracts.workspace import Change, MergeResult, RepositoryInfo, TreeEntry
from capataz.workspace.checkouts import Checkouts
from capataz.workspace.git import Git
from capataz.workspace.ignoring import BUILT_IN, Ignoring
from capataz.workspace.inspection import object_folders
from capataz.workspace.listing import changes, diff, entries
from capataz.workspace.local_workspace import LocalWorkspace, Surroundings, WorkspaceRecord
from capataz.workspace.materialise import GITLINK
from capataz.workspace.merging import merge_trees, write_commit
from capataz.workspace.names import folder_name
from capataz.workspace.objects import TREE, ObjectStore
from capataz.workspace.throwaway import ThrowAway, shallow_of


class LocalRunRepository:
    """``RunRepository`` in ``runs/RUN``. Work runs in threads; the only process kept is one ``git cat-file``."""

    def __init__(self, folder: Path, info: RepositoryInfo, checkouts: Checkouts, *, overlay: bool, faults: Faults) -> None:
        self.info = info
        self.git_dir = folder / "repo.git"
        self._folder = folder
        self._kind: Literal["overlay", "copy"] = "overlay" if overlay else "copy"
        self._faults = faults
        self._checkouts = checkouts
        self._git = Git(self.git_dir)
        self._store = ObjectStore(self._git, info.object_format)
        self._ignoring = Ignoring(self._store, folder / "ignore")
        self._workspaces: dict[str, LocalWorkspace] = {}
        self._lock = threading.Lock()
        self._objects = (*object_folders(info.common_dir), self.git_dir / "objects")
        (self.git_dir / "info/exclude").write_text("".join(f"{p}\n" for p in BUILT_IN))

    def close(self) -> None:
        """Ends the reading process; the next call starts another."""
        self._store.close()

    # ---- trees ----

    async def tree_of(self, rev: str) -> str:
        return await asyncio.to_thread(self._tree_of, rev)

    def _tree_of(self, rev: str) -> str:
        found = self._store.info(f"{rev}^{{tree}}")
        if found is None:
            raise GitFailed(f"{rev} names no tree in the run's repository or its source")
        return found[0]

    async def entries(self, tree: str) -> list[TreeEntry]:
        return await asyncio.to_thread(entries, self._git, tree)

    async def read(self, tree: str, path: bytes) -> bytes | None:
        def work() -> bytes | None:
            entry = self._store.lookup(tree, path)
            if entry is None or entry[0] in (TREE, GITLINK):
                return None
            return self._store.read(entry[1], "blob")

        return await asyncio.to_thread(work)

    async def sizes(self, shas: list[str]) -> dict[str, int]:
        def work() -> dict[str, int]:
            return {sha: found[2] for sha in shas if (found := self._store.info(sha)) is not None}

        return await asyncio.to_thread(work)

    async def changes(self, old_tree: str, new_tree: str) -> list[Change]:
        return await asyncio.to_thread(changes, self._git, old_tree, new_tree)

    async def diff(self, old_tree: str, new_tree: str, *, binary: bool = True) -> bytes:
        return await asyncio.to_thread(lambda: diff(self._git, old_tree, new_tree, binary=binary))

    async def merge(self, base: str, ours: str, theirs: str) -> MergeResult:
        return await asyncio.to_thread(merge_trees, self._store, base, ours, theirs)

    async def filtered(self, base_tree: str, tree: str, drop: list[bytes]) -> str:
        def work() -> str:
            return self._store.edit(tree, [(path, self._store.lookup(base_tree, path)) for path in drop])

        return await asyncio.to_thread(work)

    async def ignored(self, base_tree: str, paths: list[bytes]) -> set[bytes]:
        return await asyncio.to_thread(self._ignoring.ignored, base_tree, paths)

    async def commit(self, tree: str, parents: list[str], message: str, *, at: float) -> str:
        return await asyncio.to_thread(write_commit, self._store, tree, parents, message, at)

    # ---- files ----

    async def checkout(self, tree: str) -> Path:
        return await asyncio.to_thread(self._checkouts.ensure, self._git, tree)

    async def workspace(
        self, workspace_id: str, tree: str, *, base_sha: str, writable: bool = True, hidden: list[str] | None = None
    ) -> LocalWorkspace:
        return await asyncio.to_thread(self._workspace, workspace_id, tree, base_sha, writable, hidden or [])

    def _workspace(self, workspace_id: str, tree: str, base_sha: str, writable: bool, hidden: list[str]) -> LocalWorkspace:
        folder = self.workspaces / folder_name(workspace_id)
        with self._lock:
            known = self._workspaces.get(workspace_id)
        if known is not None and (folder / "workspace.json").exists():
            return known
        record = WorkspaceRecord(workspace_id, tree, base_sha, self._kind, writable, self._hidden_paths(tree, hidden))
        opened = LocalWorkspace.open(folder, record, self._surroundings())
        with self._lock:
            # Two tasks may open it at once; both get the object that guards it.
            current = self._workspaces.get(workspace_id)
            if current is None or current is known:
                self._workspaces[workspace_id] = current = opened
            return current

    @property
    def workspaces(self) -> Path:
        return self._folder / "ws"

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            store=self._store,
            faults=self._faults,
            checkout=lambda tree: self._checkouts.ensure(self._git, tree),
            throwaway=self._throwaway,
        )

    def _throwaway(self, record: WorkspaceRecord) -> ThrowAway:
        return ThrowAway(
            base_sha=record.base_sha,
            index=lambda: self._checkouts.index(self._git, record.tree, self._tree_of(record.base_sha)),
            objects=self._objects,
            shallow=shallow_of(self.info.common_dir),
            object_format=self.info.object_format,
        )

    def _hidden_paths(self, tree: str, globs: list[str]) -> list[str]:
        """The files that the globs name, a folder that is hidden whole as one."""
        if not globs:
            return []
        patterns = [compile_glob(g) for g in globs]
        listing = [e.path for e in entries(self._git, tree)]
        shown_folders = {f for path in listing if not any(p.match(path) for p in patterns) for f in _folders(path)}
        hidden = {
            next((f for f in _folders(path) if f not in shown_folders), path)
            for path in listing
            if any(p.match(path) for p in patterns)
        }
        return sorted(path.decode("utf-8", "surrogateescape") for path in hidden)


def _folders(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(1, len(parts))]
