"""The private layer of a workspace on disk: made fresh for a tree, or as the difference of two trees over a checkout."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.workspace import Change
from capataz.workspace.files import directory, open_directory, parent_of
from capataz.workspace.listing import SizedEntry, changes, sized_entries
from capataz.workspace.materialise import GITLINK, materialise
from capataz.workspace.objects import TREE, ObjectStore
from capataz.workspace.stat_cache import StatCache

_MAX_LOCK_ENTRIES = 20_000


@dataclass(frozen=True, slots=True)
class Layer:
    """``folder/upper`` holds the files, ``folder/work`` is the overlay's own (absent for a copy)."""

    folder: Path

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    @property
    def work(self) -> Path:
        return self.folder / "work"


def make_layer(folder: Path, *, overlay: bool) -> Layer:
    layer = Layer(folder)
    layer.folder.mkdir(parents=True)
    for part in (layer.upper, *((layer.work,) if overlay else ())):
        part.mkdir()
        part.chmod(0o755)
    return layer


Gitlinks = dict[bytes, str]
"""Path -> commit of each submodule whose empty folder is in the layer: a folder alone does not tell."""


def fill_copy(store: ObjectStore, layer: Layer, tree: str, cache: StatCache) -> Gitlinks:
    """The whole tree as plain files."""
    listing = sized_entries(store.git, tree)
    with directory(layer.upper) as root:
        materialise(store.git, listing, root, mtime=None, written=_remember(cache))
    return {e.path: e.sha for e in listing if e.mode == GITLINK}


def fill_overlay(store: ObjectStore, layer: Layer, lower_tree: str, tree: str, cache: StatCache) -> Gitlinks:
    """What turns a checkout of ``lower_tree`` into ``tree`` when laid over it: changed files, and whiteouts for the rest."""
    if lower_tree == tree:
        return {}
    differences = changes(store.git, lower_tree, tree)
    with directory(layer.upper) as root:
        materialise(store.git, [_sized(store, c) for c in differences if c.status != "D"], root, mtime=None, written=_remember(cache))
        for change in differences:
            if change.new_mode == GITLINK and change.status == "A":
                _hide_below(root, change.path)
        for path in {_vanished(store, tree, c.path) for c in differences if c.status == "D"} - {None}:
            assert path is not None
            with parent_of(root, path, make=True) as (parent, name):
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)
    return {c.path: c.new_sha for c in differences if c.new_mode == GITLINK}


def _sized(store: ObjectStore, change: Change) -> SizedEntry:
    if change.new_mode == GITLINK:
        return SizedEntry(change.new_mode, change.new_sha, 0, change.path)
    found = store.info(change.new_sha)
    return SizedEntry(change.new_mode, change.new_sha, found[2] if found else 0, change.path)


def _remember(cache: StatCache) -> Callable[[SizedEntry, os.stat_result], None]:
    def written(entry: SizedEntry, st: os.stat_result) -> None:
        if stat.S_ISREG(st.st_mode):
            cache.trust(entry.path, st, entry.sha)

    return written


def _vanished(store: ObjectStore, tree: str, path: bytes) -> bytes | None:
    """The topmost folder (or the path itself) that ``tree`` lacks; None: something else stands there and hides it."""
    parts = path.split(b"/")
    for end in range(1, len(parts) + 1):
        above = b"/".join(parts[:end])
        entry = store.lookup(tree, above)
        if entry is None:
            return above
        if entry[0] != TREE:
            return None
    return None


def _hide_below(root: int, path: bytes) -> None:
    with parent_of(root, path) as (parent, name):
        fd = open_directory(name, at=parent)
        try:
            os.setxattr(fd, "user.overlay.opaque", b"y")
        finally:
            os.close(fd)


def release_locks(git: int) -> None:
    """Removes the lock files that a killed git left in a throw-away ``.git`` (an open folder); its objects are left out."""
    left = [_MAX_LOCK_ENTRIES]
    _release(git, 0, left)


def _release(fd: int, depth: int, left: list[int]) -> None:
    for raw in os.listdir(fd):
        name = os.fsencode(raw)
        left[0] -= 1
        if left[0] < 0:
            return
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode) and name.endswith(b".lock"):
            os.unlink(name, dir_fd=fd)
        elif stat.S_ISDIR(mode) and depth < 20 and not (depth == 0 and name == b"objects"):
            with directory(name, at=fd) as sub:
                _release(sub, depth + 1, left)
