"""The worker's side of file operations: requests to the resident helper, answers as the contract's records."""

from __future__ import annotations

from typing import Literal

from capataz.contracts.errors import SandboxFailed, UsageError
from capataz.contracts.sandbox import DirEntry, FileStat
from capataz.sandbox.channel import Channel
from capataz.sandbox.resident import wire

MAX_BYTES = 64 << 20                           # of one read or write: it travels as one frame
_KINDS: dict[bytes, Literal["file", "dir", "link", "other"]] = {b"f": "file", b"d": "dir", b"l": "link", b"o": "other"}


class HelperFiles:
    """Implements the port's ``SessionFiles``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def stat(self, path: bytes) -> FileStat:
        answer = await self._channel.request(wire.STAT, 0, 0, path)
        kind = answer.blobs[0] if answer.blobs else b""
        return FileStat("missing" if kind == b"m" else _KINDS.get(kind, "other"), answer.a, answer.b & 0o7777)

    async def read(self, path: bytes, *, offset: int = 0, limit: int = 16 << 20) -> bytes:
        """At most ``limit`` bytes from ``offset``; a larger ``limit`` than 64 MiB is a ``UsageError``."""
        if offset < 0 or not 0 <= limit <= MAX_BYTES:
            raise UsageError(f"offset must be 0 or more and limit between 0 and {MAX_BYTES}")
        answer = await self._channel.request(wire.READ, offset, limit, path)
        data = answer.blobs[0] if answer.blobs else b""
        if len(data) > limit:
            raise SandboxFailed("the helper answered more than was asked")
        return data

    async def write(self, path: bytes, data: bytes, *, mode: int | None = None) -> None:
        if len(data) > MAX_BYTES:
            raise UsageError(f"a file written as a whole has at most {MAX_BYTES} bytes; this one has {len(data)}")
        await self._channel.request(wire.WRITE, -1 if mode is None else mode & 0o777, 0, path, data)

    async def list(self, path: bytes, *, depth: int = 1, limit: int = 10_000) -> list[DirEntry]:
        if depth < 1 or not 1 <= limit <= 1_000_000:
            raise UsageError("depth must be 1 or more and limit between 1 and 1000000")
        answer = await self._channel.request(wire.LIST, depth, limit, path)
        if answer.a == 0:
            return []
        paths, entries = answer.blobs[0].split(b"\0"), answer.blobs[1]
        if len(paths) * wire.ENTRY.size != len(entries):
            raise SandboxFailed("the helper answered a listing that does not add up")
        return [DirEntry(p, _KINDS.get(kind, "other"), size) for p, (kind, size) in zip(paths, wire.ENTRY.iter_unpack(entries), strict=True)]

    async def remove(self, path: bytes) -> None:
        await self._channel.request(wire.REMOVE, 0, 0, path)
