"""Frames between the worker and the resident helper: one fixed head, integers, byte strings. Both sides share this file.

No pickle, no JSON: a frame of a helper that hostile code took over can at worst be a wrong answer or a closed session.
"""

from __future__ import annotations

from struct import Struct, error

HEAD = Struct("<IBIqqH")                       # bytes of the blobs part, op, id, a, b, number of blobs
_SIZE = Struct("<I")
MAX_BODY = 96 << 20

# worker -> helper
INIT, RUN, KILL, STAT, READ, WRITE, LIST, REMOVE, LISTEN, UNLINKED = range(1, 11)
# helper -> worker
HELLO, OK, FAIL, DONE, CONNECTED = range(64, 69)

# kinds of FAIL, in its field a
FORBIDDEN, MISSING, USAGE, BROKEN = range(1, 5)

# why the helper killed a command, in field b of DONE
NOT_KILLED, ASKED, MEMORY, PIDS, CPU, LOST, SESSION = range(7)

INIT_FIELDS = Struct("<qqdqqd")                 # memory_bytes, pids, cpu_s, file_bytes, flags, poll_s
FLAG_PID1, FLAG_WATCH = 1, 2
ENDED = Struct("<iqqd")                         # wait status, peak rss of one process, peak of the tree's memory, seconds
ENTRY = Struct("<cq")                           # kind, size


class Frame:
    """One message. ``fds`` are taken by whoever handles the frame."""

    __slots__ = ("a", "b", "blobs", "id", "op")

    def __init__(self, op: int, id: int, a: int, b: int, blobs: list[bytes]) -> None:
        self.op, self.id, self.a, self.b, self.blobs = op, id, a, b, blobs


def pack(op: int, id: int, a: int = 0, b: int = 0, *blobs: bytes) -> bytes:
    """The bytes of one frame."""
    parts = [b""]
    for blob in blobs:
        parts.append(_SIZE.pack(len(blob)))
        parts.append(blob)
    parts[0] = HEAD.pack(sum(map(len, parts)), op, id, a, b, len(blobs))
    return b"".join(parts)


class Decoder:
    """Cuts a byte stream into frames. Raises ``ValueError`` for bytes that are no frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= HEAD.size:
            size, op, id, a, b, count = HEAD.unpack_from(self._buffer)
            if size > MAX_BODY:
                raise ValueError("a frame over the size limit")
            if len(self._buffer) < HEAD.size + size:
                break
            body = bytes(memoryview(self._buffer)[HEAD.size : HEAD.size + size])
            del self._buffer[: HEAD.size + size]
            frames.append(Frame(op, id, a, b, _blobs(body, count)))
        return frames


def _blobs(body: bytes, count: int) -> list[bytes]:
    blobs: list[bytes] = []
    at = 0
    try:
        for _ in range(count):
            (size,) = _SIZE.unpack_from(body, at)
            at += _SIZE.size
            if at + size > len(body):
                raise ValueError("a frame with a cut blob")
            blobs.append(body[at : at + size])
            at += size
    except error:
        raise ValueError("a frame with a cut blob") from None
    if at != len(body):
        raise ValueError("a frame with bytes left over")
    return blobs
