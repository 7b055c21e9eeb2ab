"""A workspace on this host: its folder, its record, snapshot, restore, removal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from capataz.contracts.errors import CapatazError, GitFailed
from capataz.contracts.faults import Faults
from capataz.contracts.sandbox import WorkspaceMount
from capataz.workspace.files import directory, remove_folder, write_whole
from capataz.workspace.layers import Layer, fill_copy, fill_overlay, make_layer, release_locks
from capataz.workspace.objects import ObjectStore
from capataz.workspace.scan import Scan
from capataz.workspace.stat_cache import StatCache
from capataz.workspace.throwaway import ThrowAway

Kind = Literal["overlay", "copy"]


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """What a workspace was made for, in ``ws/ID/workspace.json``; ``layer`` names the private layer in use."""

    workspace_id: str
    tree: str
    base_sha: str
    kind: Kind
    writable: bool = True
    hidden: list[str] = field(default_factory=list[str])   # surrogate-escaped paths
    layer: int = 0
    gitlinks: dict[str, str] = field(default_factory=dict[str, str])   # surrogate-escaped path -> commit, of the layer


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a workspace needs from its run."""

    store: ObjectStore
    faults: Faults
    checkout: Callable[[str], Path]
    throwaway: Callable[[WorkspaceRecord], ThrowAway]


class LocalWorkspace:
    """``Workspace``: overlay over a shared checkout, or a copy. One call at a time; calls run in threads."""

    def __init__(self, folder: Path, record: WorkspaceRecord, around: Surroundings) -> None:
        self.workspace_id = record.workspace_id
        self.kind: Kind = record.kind
        self._folder = folder
        self._record = record
        self._around = around
        self._lock = threading.Lock()
        self._cache = StatCache(folder / "cache")
        self._specials: list[tuple[bytes, str]] = []

    # ---- making and opening ----

    @classmethod
    def open(cls, folder: Path, record: WorkspaceRecord, around: Surroundings) -> LocalWorkspace:
        """Opens what stands in ``folder``, making it from ``record`` when nothing does. Whole or not at all."""
        if not (folder / "workspace.json").exists():
            around.faults.reach("workspace.create.before")
            _make(folder, record, around)
            around.faults.reach("workspace.create.after")
        try:
            found = WorkspaceRecord(**json.loads((folder / "workspace.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise GitFailed(f"workspace {record.workspace_id} is damaged: {error}") from error
        if found.kind == "overlay":
            around.checkout(found.tree)            # gc may have taken an unused one
        return cls(folder, found, around)

    @property
    def mount(self) -> WorkspaceMount:
        """Changes with ``restore``: take it anew for every session."""
        record, layer = self._record, self._layer()
        overlay = record.kind == "overlay"
        return WorkspaceMount(
            upper=layer.upper,
            lower=self._around.checkout(record.tree) if overlay else None,
            work=layer.work if overlay else None,
            writable=record.writable,
            read_only=() if record.hidden else self._around.throwaway(record).mounts(),
            hidden=tuple(p.encode("utf-8", "surrogateescape") for p in record.hidden),
        )

    @property
    def tree(self) -> str:
        """The tree it was made from."""
        return self._record.tree

    def _layer(self) -> Layer:
        return Layer(self._folder / str(self._record.layer))

    # ---- the port ----

    async def snapshot(self) -> str:
        return await asyncio.to_thread(self._snapshot)

    async def specials(self) -> list[tuple[bytes, str]]:
        def collect() -> list[tuple[bytes, str]]:
            with self._lock:
                return self._scan()[1].specials

        return await asyncio.to_thread(collect)

    async def restore(self, tree: str) -> None:
        await asyncio.to_thread(self._restore, tree)

    async def remove(self) -> None:
        await asyncio.to_thread(self._remove)

    # ---- inside threads ----

    def _snapshot(self) -> str:
        with self._lock:
            self._around.faults.reach("snapshot.before")
            tree, _ = self._scan()
            self._cache.save()
            self._around.faults.reach("snapshot.after")
            return tree

    def _scan(self) -> tuple[str, Scan]:
        scan = Scan(self._around.store, self._cache, self.kind == "overlay", _raw(self._record.gitlinks))
        try:
            with directory(self._layer().upper) as root:
                tree = scan.run(root, self._record.tree)
        except BaseException as error:
            self._cache.clear()                    # it names blobs that were read, and now were not stored
            if isinstance(error, FileNotFoundError):
                raise GitFailed(f"workspace {self.workspace_id} is gone") from None
            if isinstance(error, OSError):
                raise GitFailed(f"workspace {self.workspace_id} cannot be read: {error}") from error
            raise
        scan.specials = sorted(set(scan.specials))
        return tree, scan

    def _restore(self, tree: str) -> None:
        with self._lock:
            present, scan = self._scan()
            if present == tree and not scan.specials and not scan.irregular:
                self._release_locks()
                return
            try:
                self._rebuild(tree)
            except OSError as error:
                raise GitFailed(f"workspace {self.workspace_id} cannot be restored: {error}") from error

    def _rebuild(self, tree: str) -> None:
        """A new layer beside the old one, then the record names it: a crash leaves one of both, whole."""
        old, record = self._layer(), replace(self._record, layer=self._record.layer + 1)
        folder = self._folder / str(record.layer)
        remove_folder(folder)
        self._cache.clear()
        layer = make_layer(folder, overlay=self.kind == "overlay")
        record = replace(record, gitlinks=_fill(layer, record, tree, self._around, self._cache))
        self._carry_git(old, layer)
        write_whole(self._folder / "workspace.json", _dump(record))
        self._record = record
        self._cache.save()
        remove_folder(old.folder)

    def _carry_git(self, old: Layer, new: Layer) -> None:
        """The worker's own commits and stashes stay; a ``.git`` that is no folder any more is made anew."""
        if self._record.hidden:
            return
        git = old.upper / ".git"
        if git.is_dir() and not git.is_symlink():
            with directory(git) as fd:
                release_locks(fd)
            git.rename(new.upper / ".git")
        else:
            self._around.throwaway(self._record).write(new.upper / ".git")

    def _release_locks(self) -> None:
        with contextlib.suppress(OSError), directory(self._layer().upper / ".git") as fd:
            release_locks(fd)

    def _remove(self) -> None:
        with self._lock:
            remove_workspace(self._folder, self._around.faults)


def remove_workspace(folder: Path, faults: Faults) -> None:
    """Idempotent; a crash leaves a folder whose name starts with a dot, which gc finds."""
    faults.reach("workspace.remove.before")
    doomed = folder.parent / f".old-{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):
        folder.rename(doomed)
        remove_folder(doomed)
    faults.reach("workspace.remove.after")


def _make(folder: Path, record: WorkspaceRecord, around: Surroundings) -> None:
    temporary = folder.parent / f".new-{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        cache = StatCache(temporary / "cache")
        layer = make_layer(temporary / str(record.layer), overlay=record.kind == "overlay")
        record = replace(record, gitlinks=_fill(layer, record, record.tree, around, cache))
        if not record.hidden:
            around.throwaway(record).write(layer.upper / ".git")
        cache.save()
        write_whole(temporary / "workspace.json", _dump(record))
        with contextlib.suppress(FileExistsError):
            temporary.rename(folder)
    except CapatazError:
        raise
    except OSError as error:
        if not (folder / "workspace.json").exists():   # another task may have made it first: theirs is as good
            raise GitFailed(f"workspace {record.workspace_id} cannot be made: {error}") from error
    finally:
        remove_folder(temporary)


def _fill(layer: Layer, record: WorkspaceRecord, tree: str, around: Surroundings, cache: StatCache) -> dict[str, str]:
    if record.kind == "copy":
        links = fill_copy(around.store, layer, tree, cache)
    else:
        around.checkout(record.tree)
        links = fill_overlay(around.store, layer, record.tree, tree, cache)
    return {path.decode("utf-8", "surrogateescape"): sha for path, sha in links.items()}


def _raw(gitlinks: dict[str, str]) -> dict[bytes, str]:
    return {path.encode("utf-8", "surrogateescape"): sha for path, sha in gitlinks.items()}


def _dump(record: WorkspaceRecord) -> bytes:
    return json.dumps(asdict(record)).encode("ascii")
