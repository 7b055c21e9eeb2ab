"""How much disk a session's writable folders hold. Their content is hostile: nothing is followed or opened but folders."""

# Works by descriptors:
# ruff: noqa: PTH208
from __future__ import annotations

import os
import stat
import time
from pathlib import Path

_ENTRY_BYTES = 1024                            # what a name costs in inodes and folders: a million empty files is no nothing
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RESERVE_BYTES = 512 << 20


def usage(folder: Path, deadline_s: float = 30.0) -> int:
    """Bytes below ``folder``: blocks, plus 1 KiB for each name. Hard links count once; unreadable folders as empty."""
    seen: set[tuple[int, int]] = set()
    deadline = time.monotonic() + deadline_s
    total = 0
    pending = [b""]
    try:
        top = os.open(folder, _OPEN)
    except OSError:
        return 0
    try:
        while pending and time.monotonic() < deadline:
            total += _one(top, pending.pop(), seen, pending)
    finally:
        os.close(top)
    return total


def _one(top: int, path: bytes, seen: set[tuple[int, int]], pending: list[bytes]) -> int:
    """One folder's own entries. It is opened name by name from the top: no depth or width can use up descriptors."""
    total = 0
    try:
        fd = _open_below(top, path)
    except OSError:
        return 0
    try:
        for name in map(os.fsencode, os.listdir(fd)):
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            total += _ENTRY_BYTES + _blocks(found, seen)
            if stat.S_ISDIR(found.st_mode):
                pending.append(path + b"/" + name if path else name)
    except OSError:
        pass
    finally:
        os.close(fd)
    return total


def _open_below(top: int, path: bytes) -> int:
    fd = os.open(b".", _OPEN, dir_fd=top)
    for name in path.split(b"/") if path else ():
        try:
            below = os.open(name, _OPEN, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _blocks(found: os.stat_result, seen: set[tuple[int, int]]) -> int:
    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
        key = (found.st_dev, found.st_ino)
        if key in seen:
            return 0
        seen.add(key)
    return found.st_blocks * 512


class Gauge:
    """Watches folders against ``limit_bytes`` without walking them all the time.

    A folder cannot have grown by more than its file system lost, so the walk waits until that much is gone; since others
    may give space back meanwhile, it also happens now and then. ``baseline`` is what may be there beside the limit.
    """

    def __init__(self, folders: list[Path], limit_bytes: int, count_from_now: bool) -> None:
        self._folders = folders
        self._limit = limit_bytes
        self._count_from_now = count_from_now
        self._baseline = 0
        self._used = -1
        self._free = self._start_free = self._free_now()
        self._next_walk = 0.0
        self._rested = 0.0

    def due(self) -> bool:
        """Whether ``measure`` is worth its while; costs one system call."""
        now = time.monotonic()
        return self._used < 0 or now >= self._next_walk or (now >= self._rested and self.suspicious())

    def suspicious(self) -> bool:
        """Whether the folders can be over the limit at all, by what their file system lost since they were measured."""
        return max(0, self._used) + max(0, self._free - self._free_now()) > self._limit

    def measure(self, unlinked_bytes: int = 0) -> bool:
        """Walks; True when over the limit. Blocks: for a thread. ``unlinked_bytes``: files that are open and have no name."""
        started = time.monotonic()
        free = self._free_now()
        used = sum(usage(folder) for folder in self._folders)
        if self._used < 0:
            self._baseline = used if self._count_from_now else 0
        self._used, self._free = used - self._baseline + unlinked_bytes, free
        took = time.monotonic() - started
        self._next_walk = time.monotonic() + max(2.0, 20 * took)
        return self._used > self._limit or self._host_in_danger(free)

    def rest(self, seconds: float) -> None:
        """No measuring for so long: it must stay a small part of what is done."""
        self._rested = time.monotonic() + seconds

    def _host_in_danger(self, free: int) -> bool:
        """The file system is nearly full and lost much since the start: space that no walk finds is used somewhere."""
        return free < _RESERVE_BYTES and self._start_free - free > min(self._limit, _RESERVE_BYTES)

    def _free_now(self) -> int:
        total = 0
        for folder in self._folders[:1]:
            try:
                found = os.statvfs(folder)
            except OSError:
                continue
            total += found.f_bavail * found.f_frsize
        return total
