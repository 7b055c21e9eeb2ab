"""What a command prints: the head, the tail, how much; optionally everything up to a limit in a file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_MARK_ROOM = 64


class Ring:
    """Keeps at most ``limit`` bytes of a stream: its head and its tail with a mark between; memory stays flat."""

    def __init__(self, limit: int, spool: Path | None = None, spool_limit: int = 0) -> None:
        room = max(0, limit - _MARK_ROOM) if limit > 2 * _MARK_ROOM else max(0, limit)
        self._marked = limit > 2 * _MARK_ROOM
        self._limit = max(0, limit)
        self._head_size = room // 2
        self._tail_size = room - self._head_size
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self._split = False
        self._spool = spool if spool_limit > 0 else None
        self._spool_left = spool_limit
        self._file: BinaryIO | None = None

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the stream. The first byte too many starts the spool file with all that came before."""
        if self._spool is not None:
            self._feed_spool(data)
        self.total += len(data)
        if self.total <= self._limit:
            self._head += data                 # all of it fits so far: the first overflow makes the split
            return
        if not self._split:
            self._split = True
            self._tail += self._head[self._head_size :]
            del self._head[self._head_size :]
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_size :] if self._tail_size else b""
        if len(self._tail) > 2 * self._tail_size + 4096:
            self._cut()

    def _cut(self) -> None:
        if self._tail_size:
            del self._tail[: max(0, len(self._tail) - self._tail_size)]
        else:
            self._tail.clear()

    def _feed_spool(self, data: bytes) -> None:
        if self._file is None and self._spool is not None and self.total + len(data) > self._limit:
            self._file = self._spool.open("xb")
            self._write(bytes(self._head + self._tail))
        if self._file is not None:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._file is not None and self._spool_left > 0:
            piece = data[: self._spool_left]
            try:
                self._file.write(piece)
            except OSError:                    # a full disk of ours costs the full copy, never the command
                self._spool_left = 0
                return
            self._spool_left -= len(piece)

    def finish(self) -> tuple[bytes, int, Path | None]:
        """(kept bytes, bytes left out, spool file if one was needed)."""
        spool = self._spool if self._file is not None else None
        self.close()
        if self.total <= self._limit:
            return bytes(self._head), 0, None
        self._cut()
        left_out = self.total - len(self._head) - len(self._tail)
        mark = b"\n[... %d bytes left out ...]\n" % left_out if self._marked else b""
        return bytes(self._head) + mark + bytes(self._tail), left_out, spool

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def discard(self) -> None:
        """Forgets everything, the spool file too."""
        started = self._file is not None
        self.close()
        if started and self._spool is not None:
            self._spool.unlink(missing_ok=True)
