"""From the files of a workspace to a tree: reads the private layer only and takes the rest from the tree below it.

The files are hostile and may change while they are read: every folder is opened from its parent without following
links, every file is read through the descriptor that was checked.
"""

# ruff: noqa: PTH123  -- works on descriptors and bytes, for which pathlib has no words
from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from capataz.contracts.errors import GitFailed
from capataz.workspace.batch import Batch
from capataz.workspace.files import directory, open_file
from capataz.workspace.materialise import EXECUTABLE, GITLINK, LINK
from capataz.workspace.names import is_reserved, shown
from capataz.workspace.objects import TREE, ObjectStore, Tree
from capataz.workspace.stat_cache import StatCache

_IN_MEMORY = 8 << 20                           # larger files are copied aside first: git needs the size before the bytes
_MAX_DEPTH = 200
_MAX_PATH = 4000
_OVERLAY_XATTRS = ("user.overlay.", "trusted.overlay.")
_SPECIAL = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


@dataclass(slots=True)
class Scan:
    """One pass over a folder. ``overlay``: it is the upper layer over ``lower_tree``; otherwise it is the whole."""

    store: ObjectStore
    cache: StatCache
    overlay: bool
    gitlinks: Mapping[bytes, str] = field(default_factory=dict[bytes, str])   # submodules that the layer itself stands for
    specials: list[tuple[bytes, str]] = field(default_factory=list[tuple[bytes, str]])
    batch: Batch = field(init=False)
    irregular: int = 0                         # empty folders and modes that the tree does not tell: a restore mends them

    def __post_init__(self) -> None:
        self.batch = Batch(self.store)

    def run(self, root: int, lower_tree: str | None) -> str:
        """The tree of what a process in the workspace sees."""
        tree = self._folder(root, b"", lower_tree if self.overlay else None, 0)
        self.batch.finish()
        return tree or self.store.empty_tree

    def _folder(self, fd: int, path: bytes, below: str | None, depth: int) -> str | None:
        """The tree of one folder; None when it holds nothing that git can name."""
        level: Tree = dict(self.store.tree(below)) if below is not None else {}
        before = dict(level)
        names = [os.fsencode(n) for n in os.listdir(fd)]
        for name in names:
            if depth == 0 and name == b".git":
                continue
            self._entry(fd, name, path + b"/" + name if path else name, level, depth)
        if b"HEAD" in names and b"HEAD" not in before:
            self._note_bare(path, names, level)
        if below is not None and level == before:
            return below
        return self.store.write_tree(level, self.batch.write) if level else None

    def _entry(self, fd: int, name: bytes, path: bytes, level: Tree, depth: int) -> None:
        try:
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return                                 # it went while we looked: as if it had gone before
        if self.overlay and stat.S_ISCHR(st.st_mode) and st.st_rdev == 0:
            level.pop(name, None)
            return
        if is_reserved(name):
            self._note_reserved(path, name, st)
            return
        try:
            entry = self._value(fd, name, path, st, level.get(name), depth)
        except (FileNotFoundError, NotADirectoryError):
            entry = None
        if entry is None:
            level.pop(name, None)
        else:
            level[name] = entry

    def _value(self, fd: int, name: bytes, path: bytes, st: os.stat_result, old: tuple[str, str] | None, depth: int) -> tuple[str, str] | None:
        if stat.S_ISDIR(st.st_mode):
            return self._subfolder(fd, name, path, old, depth)
        if stat.S_ISREG(st.st_mode):
            return self._file(fd, name, path, st)
        if stat.S_ISLNK(st.st_mode):
            return (LINK, self._blob(os.readlink(name, dir_fd=fd)))
        self.specials.append((path, _SPECIAL.get(stat.S_IFMT(st.st_mode), "device")))
        return None

    def _subfolder(self, fd: int, name: bytes, path: bytes, old: tuple[str, str] | None, depth: int) -> tuple[str, str] | None:
        if depth >= _MAX_DEPTH or len(path) > _MAX_PATH:
            self.specials.append((path, "reserved"))
            return old
        with directory(name, at=fd) as sub:
            below = None
            if self.overlay and old is not None and old[0] == TREE and not self._opaque(sub, path):
                below = old[1]
            tree = self._folder(sub, path, below, depth + 1)
        if tree is not None and tree != self.store.empty_tree:
            return (TREE, tree)
        # A submodule that is not checked out is an empty folder: it still stands for its commit.
        if path in self.gitlinks:
            return (GITLINK, self.gitlinks[path])
        self.irregular += 1
        return old if old is not None and old[0] == GITLINK else None

    def _opaque(self, fd: int, path: bytes) -> bool:
        opaque = False
        for name in _xattrs(fd):
            if name.startswith(_OVERLAY_XATTRS):
                kind = name.split("overlay.", 1)[1]
                if kind == "redirect":
                    raise GitFailed(f"{shown(path)}: the overlay was mounted with redirects, which a snapshot cannot follow")
                opaque = opaque or (kind == "opaque" and os.getxattr(fd, name)[:1] == b"y")
        return opaque

    # ---- files ----

    def _file(self, fd: int, name: bytes, path: bytes, st: os.stat_result) -> tuple[str, str] | None:
        mode = EXECUTABLE if st.st_mode & 0o100 else "100644"
        self.irregular += stat.S_IMODE(st.st_mode) not in (0o644, 0o755)
        known = self.cache.get(path, st)
        if known is not None:
            return (mode, known)
        file = open_file(name, at=fd)
        with open(file, "rb", buffering=0) as source:
            read_at = time.time_ns()
            opened = os.fstat(file)
            if not stat.S_ISREG(opened.st_mode):
                raise FileNotFoundError(path)
            if self.overlay and st.st_size and "user.overlay.metacopy" in _xattrs(file):
                raise GitFailed(f"{shown(path)}: the overlay was mounted with metacopy, which a snapshot cannot follow")
            sha = self._large(source) if opened.st_size > _IN_MEMORY else self._small(source)
            after = os.fstat(file)
        if after.st_mtime_ns == opened.st_mtime_ns and after.st_size == opened.st_size:
            self.cache.put(path, after, sha, read_at_ns=read_at)
        return (mode, sha)

    def _small(self, source: IO[bytes]) -> str:
        data = source.read(_IN_MEMORY + 1)
        parts = [data]
        while data and sum(map(len, parts)) <= _IN_MEMORY:
            data = source.read(_IN_MEMORY)
            parts.append(data)
        if data:
            return self._large(source, b"".join(parts))
        return self._blob(b"".join(parts))

    def _large(self, source: IO[bytes], head: bytes = b"") -> str:
        with tempfile.TemporaryFile(dir=self.store.git.git_dir) as copy:
            copy.write(head)
            while chunk := source.read(1 << 20):
                copy.write(chunk)
            size = copy.tell()
            copy.seek(0)
            return self.store.write_file(copy, size)

    def _blob(self, data: bytes) -> str:
        return self.batch.write("blob", data)

    # ---- what no tree may hold ----

    def _note_reserved(self, path: bytes, name: bytes, st: os.stat_result) -> None:
        if name == b".git":
            self.specials.append((path.rpartition(b"/")[0], "embedded_repository"))
        else:
            self.specials.append((path, "reserved"))

    def _note_bare(self, path: bytes, names: list[bytes], level: Tree) -> None:
        """A bare repository in the tree: whoever enters it with git obeys its configuration."""
        seen = set(names) | set(level)
        if path and (b"commondir" in seen or {b"objects", b"refs"} <= seen):
            self.specials.append((path, "embedded_repository"))


def _xattrs(fd: int) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError:                                # a file system without them holds no overlay's upper layer either
        return []
