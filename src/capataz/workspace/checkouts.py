"""Shared read-only checkouts, one per tree, under ``CAPATAZ_HOME/checkouts``, each with a ready index beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from capataz.contracts.errors import GitFailed
from capataz.workspace.files import directory, remove_folder, write_whole
from capataz.workspace.git import Git
from capataz.workspace.index_file import IndexEntry, serialize_index
from capataz.workspace.listing import SizedEntry, sized_entries
from capataz.workspace.materialise import GITLINK, materialise

_EPOCH = 1_577_836_800                         # 2020-01-01: older than anything that a worker writes
_YEAR = 1 << 25


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds an advisory lock between processes; a killed process lets go."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def tree_mtime(tree: str) -> int:
    """The time of every file of a checkout of ``tree``, in seconds.

    Equal within a tree, so that ``make`` sees nothing stale; different between trees, so that Python never takes
    bytecode made for another version of a file (it compares size and seconds); known without asking, so that an index
    can be written without reading the files.
    """
    return _EPOCH + int(tree[:8], 16) % _YEAR


class Checkouts:
    """``checkouts/TREE`` (files), ``checkouts/TREE.index/BASE`` (ready indexes). Made by temp + rename: whole or not there."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "checkouts"
        self._locks = home / "locks"

    def path(self, tree: str) -> Path:
        return self.folder / tree

    def _lock_of(self, tree: str) -> Path:
        return self._locks / f"checkout-{tree[:2]}"    # a bounded number of files: a lock file cannot safely be removed

    def ensure(self, git: Git, tree: str) -> Path:
        """The folder of ``tree``. Blocks while another process makes it."""
        target = self.path(tree)
        if target.is_dir():
            self._touch(tree)
            return target
        with locked(self._lock_of(tree)):
            if not target.is_dir():
                self._make(git, tree, target)
        self._touch(tree)
        return target

    def _make(self, git: Git, tree: str, target: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".new-{tree}-{uuid.uuid4().hex}"
        temporary.mkdir(mode=0o755)
        try:
            temporary.chmod(0o755)
            listing = sized_entries(git, tree)
            with directory(temporary) as root:
                materialise(git, listing, root, mtime=tree_mtime(tree))
            self._write_index(tree, tree, _index_entries(listing, tree_mtime(tree), {}))
            temporary.rename(target)
        except OSError as error:
            raise GitFailed(f"the checkout of {tree} cannot be written: {error}") from error
        finally:
            remove_folder(temporary)

    def index(self, git: Git, tree: str, base_tree: str) -> bytes:
        """An index of ``base_tree`` for a folder that holds ``tree``: equal files are known to be so without reading them."""
        file = self._index_file(tree, base_tree)
        try:
            return file.read_bytes()
        except FileNotFoundError:
            pass
        present = {} if tree == base_tree else {(e.path, e.mode): e.sha for e in sized_entries(git, tree)}
        self._write_index(tree, base_tree, _index_entries(sized_entries(git, base_tree), tree_mtime(tree), present))
        return file.read_bytes()

    def _index_file(self, tree: str, base_tree: str) -> Path:
        return self.folder / f"{tree}.index" / base_tree

    def _write_index(self, tree: str, base_tree: str, entries: list[IndexEntry]) -> None:
        file = self._index_file(tree, base_tree)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, serialize_index(entries, len(tree) // 2))

    def _touch(self, tree: str) -> None:
        """When it was last used, for gc: the folder's own time is part of what workers see."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.folder / f"{tree}.index")

    def last_used(self, tree: str) -> float:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"{tree}.index").stat().st_mtime
        return 0.0

    def remove(self, tree: str) -> None:
        """Idempotent. The caller knows that no workspace stands on it."""
        with locked(self._lock_of(tree)):
            doomed = self.folder / f".old-{tree}-{uuid.uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):
                self.path(tree).rename(doomed)
            remove_folder(doomed)
            remove_folder(self.folder / f"{tree}.index")


def _index_entries(listing: list[SizedEntry], mtime: int, present: dict[tuple[bytes, str], str]) -> list[IndexEntry]:
    """``present``: what the folder holds where it may differ; empty: it holds exactly ``listing``."""
    entries: list[IndexEntry] = []
    for e in listing:
        same = not present or present.get((e.path, e.mode)) == e.sha
        size = e.size & 0xFFFFFFFF if same and e.mode != GITLINK else 0
        entries.append(IndexEntry(path=e.path, mode=e.mode, sha=e.sha, size=size, mtime=(mtime if same else 0, 0)))
    return entries
