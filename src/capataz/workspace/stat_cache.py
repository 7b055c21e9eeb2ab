"""Which blob a file was when last read: a file that did not change since is not read again."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

from capataz.contracts.errors import GitFailed
from capataz.workspace.files import write_whole

_RACY_NS = 100_000_000                         # a file changed this close to its reading may change again within one clock tick
_Key = tuple[int, int, int, int, int]


def _key(st: os.stat_result) -> _Key:
    return (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode)


class StatCache:
    """By path. The change time cannot be set back by the file's owner; entries that were fresh when read are not trusted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[bytes, tuple[_Key, str]] = {}
        self._dirty = False
        self._load()

    def _load(self) -> None:
        # Written by this runtime outside of every sandbox's reach; a damaged file (kill, full disk) only costs reading again.
        try:
            self._known = pickle.loads(self._file.read_bytes())
        except (OSError, EOFError, ValueError, pickle.UnpicklingError, AttributeError, ImportError, IndexError):
            self._known = {}

    def get(self, path: bytes, st: os.stat_result) -> str | None:
        found = self._known.get(path)
        return found[1] if found is not None and found[0] == _key(st) else None

    def put(self, path: bytes, st: os.stat_result, sha: str, *, read_at_ns: int | None = None) -> None:
        if st.st_ctime_ns + _RACY_NS > (time.time_ns() if read_at_ns is None else read_at_ns):
            return
        self._known[path] = (_key(st), sha)
        self._dirty = True

    def trust(self, path: bytes, st: os.stat_result, sha: str) -> None:
        """A file that we wrote ourselves and that nobody can have changed yet."""
        self._known[path] = (_key(st), sha)
        self._dirty = True

    def clear(self) -> None:
        self._known = {}
        self._dirty = True

    def save(self) -> None:
        """Only a help for the next process; losing it costs time."""
        if not self._dirty:
            return
        try:
            write_whole(self._file, pickle.dumps(self._known, protocol=5), mode=0o600)
            self._dirty = False
        except OSError as error:
            raise GitFailed(f"the workspace cannot be written: {error}", retryable=True) from error
