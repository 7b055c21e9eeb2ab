"""Files that root writes into another user's repository are given to that user."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Owner:
    uid: int
    gid: int

    @classmethod
    def of(cls, path: Path) -> Owner:
        try:
            st = path.stat()
        except OSError:
            return cls(os.geteuid(), os.getegid())
        return cls(st.st_uid, st.st_gid)

    @property
    def is_us(self) -> bool:
        return self.uid == os.geteuid()

    def give(self, path: Path) -> None:
        """Nothing happens for files of our own, missing files, and when we are not root."""
        if self.is_us or os.geteuid() != 0:
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if path.lstat().st_uid == os.geteuid():
                os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_fd(self, fd: int) -> None:
        if not self.is_us and os.geteuid() == 0:
            os.fchown(fd, self.uid, self.gid)
