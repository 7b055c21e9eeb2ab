"""The files of a checked-out source, compared without filters and never changed here."""

# ruff: noqa: PTH123  -- works on descriptors and bytes, for which pathlib has no words
from __future__ import annotations

import os
import stat
from typing import Literal

from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace.files import DIRECTORY
from capataz.workspace.index_file import ASSUME_VALID, SKIP_WORKTREE, IndexEntry
from capataz.workspace.materialise import GITLINK, LINK
from capataz.workspace.objects import ObjectStore

FileState = Literal["same", "other", "missing", "folder", "blocked"]


class SourceFiles:
    """Open the working tree once, then ask path by path; sorted paths are quick."""

    def __init__(self, info: RepositoryInfo, store: ObjectStore, *, file_mode: bool) -> None:
        assert info.work_tree is not None
        self._store = store
        self._file_mode = file_mode
        self._root = os.open(info.work_tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack: list[tuple[bytes, int]] = []

    def __enter__(self) -> SourceFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._unwind(0)
        os.close(self._root)

    @property
    def root(self) -> int:
        return self._root

    def _unwind(self, depth: int) -> None:
        while len(self._stack) > depth:
            os.close(self._stack.pop()[1])

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """Raises ``FileNotFoundError`` or ``NotADirectoryError`` (also for a link in the way)."""
        *folders, name = path.split(b"/")
        common = 0
        while common < min(len(folders), len(self._stack)) and self._stack[common][0] == folders[common]:
            common += 1
        self._unwind(common)
        for part in folders[common:]:
            above = self._stack[-1][1] if self._stack else self._root
            self._stack.append((part, os.open(part, DIRECTORY, dir_fd=above)))
        return (self._stack[-1][1] if self._stack else self._root), name

    def forget(self) -> None:
        """After folders were made or removed: the open ones may be stale."""
        self._unwind(0)

    def stat(self, path: bytes) -> os.stat_result | None:
        """None: missing. Raises ``NotADirectoryError`` when a file or link stands where a folder should."""
        try:
            parent, name = self.parent(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotADirectoryError(os.fsdecode(path)) from error

    def state(self, path: bytes, mode: str, sha: str) -> FileState:
        """How the file compares with a blob, by its bytes."""
        try:
            st = self.stat(path)
        except NotADirectoryError:
            return "blocked"
        if st is None:
            return "missing"
        if stat.S_ISDIR(st.st_mode):
            return "same" if mode == GITLINK else "folder"
        if not self._same_kind(st, mode):
            return "other"
        return "same" if self._content(path, st) == sha else "other"

    def tracked_state(self, entry: IndexEntry, written_ns: int) -> FileState:
        """As ``state``, but a file whose size and time are as the index says is taken for unchanged, as git does:
        with a filter or line-end conversion its bytes legitimately differ from the blob."""
        if entry.flags & ASSUME_VALID or entry.extended & SKIP_WORKTREE:
            return "same"
        try:
            st = self.stat(entry.path)
        except NotADirectoryError:
            return "blocked"
        if entry.mode == GITLINK:
            return "same" if st is None or stat.S_ISDIR(st.st_mode) else "other"
        if st is None:
            return "missing"
        if stat.S_ISDIR(st.st_mode):
            return "folder"
        if not self._same_kind(st, entry.mode):
            return "other"
        if not self._stat_clean(entry, st):
            return "same" if self._content(entry.path, st) == entry.sha else "other"
        if st.st_mtime_ns < written_ns:
            return "same"
        return "same" if entry.sha in self._contents_either_way(entry.path, st) else "other"

    def _same_kind(self, st: os.stat_result, mode: str) -> bool:
        if mode == LINK:
            return stat.S_ISLNK(st.st_mode)
        executable = bool(st.st_mode & 0o100)
        return stat.S_ISREG(st.st_mode) and (not self._file_mode or executable == (mode == "100755"))

    def _stat_clean(self, entry: IndexEntry, st: os.stat_result) -> bool:
        seconds, nanoseconds = divmod(st.st_mtime_ns, 10**9)
        same_time = entry.mtime[0] == seconds & 0xFFFFFFFF and entry.mtime[1] in (0, nanoseconds)
        same_ctime = entry.ctime == (0, 0) or entry.ctime[0] == (st.st_ctime_ns // 10**9) & 0xFFFFFFFF
        return same_time and same_ctime and entry.size == st.st_size & 0xFFFFFFFF

    def _bytes(self, path: bytes, st: os.stat_result) -> bytes | None:
        parent, name = self.parent(path)
        if stat.S_ISLNK(st.st_mode):
            return os.readlink(name, dir_fd=parent)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return None                            # unreadable: not known to be the same
        with open(fd, "rb") as file:
            return file.read()

    def _content(self, path: bytes, st: os.stat_result) -> str | None:
        data = self._bytes(path, st)
        return None if data is None else self._store.hash("blob", data)

    def _contents_either_way(self, path: bytes, st: os.stat_result) -> set[str]:
        data = self._bytes(path, st)
        if data is None:
            return set()
        return {self._store.hash("blob", data), self._store.hash("blob", data.replace(b"\r\n", b"\n"))}

    def files_below(self, path: bytes) -> list[bytes] | None:
        """Everything but folders below a folder; None: no folder stands there."""
        try:
            parent, name = self.parent(path)
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except OSError:
            return None
        try:
            return _walk(fd, path, 0)
        finally:
            os.close(fd)


def _walk(fd: int, path: bytes, depth: int) -> list[bytes]:
    found: list[bytes] = []
    for raw in os.listdir(fd):
        name = os.fsencode(raw)
        below = path + b"/" + name
        if depth < 200 and stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            sub = os.open(name, DIRECTORY, dir_fd=fd)
            try:
                found += _walk(sub, below, depth + 1)
            finally:
                os.close(sub)
        else:
            found.append(below)
    return found
