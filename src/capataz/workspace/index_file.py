"""Git's index file, read and written in place (gitformat-index), so that comparing a checkout starts no filter and takes no lock."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from capataz.contracts.errors import GitFailed

ASSUME_VALID, EXTENDED, STAGE = 0x8000, 0x4000, 0x3000
SKIP_WORKTREE, INTENT_TO_ADD = 0x4000, 0x2000
_STAT = struct.Struct(">10I")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One path. Times are (seconds, nanoseconds); numbers are cut to 32 bits as git does."""

    path: bytes
    mode: str
    sha: str
    size: int
    mtime: tuple[int, int] = (0, 0)
    ctime: tuple[int, int] = (0, 0)
    dev: int = 0
    ino: int = 0
    uid: int = 0
    gid: int = 0
    flags: int = 0                             # without the name's length
    extended: int = 0

    @property
    def stage(self) -> int:
        return (self.flags & STAGE) >> 12

    def with_stat(self, st: object) -> IndexEntry:
        """The entry with what ``os.lstat`` says of its file."""
        ns, cs = st.st_mtime_ns, st.st_ctime_ns  # type: ignore[attr-defined]
        return replace(
            self,
            size=st.st_size & 0xFFFFFFFF,  # type: ignore[attr-defined]
            mtime=((ns // 10**9) & 0xFFFFFFFF, ns % 10**9),
            ctime=((cs // 10**9) & 0xFFFFFFFF, cs % 10**9),
            dev=st.st_dev & 0xFFFFFFFF,  # type: ignore[attr-defined]
            ino=st.st_ino & 0xFFFFFFFF,  # type: ignore[attr-defined]
            uid=st.st_uid & 0xFFFFFFFF,  # type: ignore[attr-defined]
            gid=st.st_gid & 0xFFFFFFFF,  # type: ignore[attr-defined]
        )


@dataclass(frozen=True, slots=True)
class Index:
    entries: list[IndexEntry]
    extensions: frozenset[bytes]

    @property
    def needs_git(self) -> bool:
        """A split or sparse index: its other half is elsewhere, git must put it together first."""
        return bool(self.extensions & {b"link", b"sdir"})


def parse_index(data: bytes, digest_bytes: int) -> Index:
    """Versions 2, 3 and 4. Raises ``GitFailed`` for anything else."""
    try:
        return _parse(data, digest_bytes)
    except (struct.error, IndexError, ValueError) as error:
        raise GitFailed(f"the index file is damaged: {error}") from None


def _parse(data: bytes, digest_bytes: int) -> Index:
    signature, version, count = struct.unpack_from(">4sII", data, 0)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise GitFailed(f"the index file has an unknown format ({signature!r}, version {version})")
    entries: list[IndexEntry] = []
    at, previous = 12, b""
    for _ in range(count):
        entry, at = _parse_entry(data, at, version, digest_bytes, previous)
        entries.append(entry)
        previous = entry.path
    names: set[bytes] = set()
    end = len(data) - digest_bytes
    while at + 8 <= end:
        name, size = struct.unpack_from(">4sI", data, at)
        names.add(name)
        at += 8 + size
    return Index(entries, frozenset(names))


def _parse_entry(data: bytes, at: int, version: int, digest_bytes: int, previous: bytes) -> tuple[IndexEntry, int]:
    start = at
    c_s, c_ns, m_s, m_ns, dev, ino, mode, uid, gid, size = _STAT.unpack_from(data, at)
    at += 40
    sha = data[at : at + digest_bytes].hex()
    at += digest_bytes
    (flags,) = struct.unpack_from(">H", data, at)
    at += 2
    extended = 0
    if flags & EXTENDED:
        (extended,) = struct.unpack_from(">H", data, at)
        at += 2
    if version == 4:
        strip, at = _varint(data, at)
        end = data.index(b"\0", at)
        path = previous[: len(previous) - strip] + data[at:end]
        at = end + 1
    else:
        end = data.index(b"\0", at)
        path = data[at:end]
        at = start + ((end - start) // 8 + 1) * 8
    return (
        IndexEntry(
            path=path, mode=f"{mode:06o}", sha=sha, size=size, mtime=(m_s, m_ns), ctime=(c_s, c_ns), dev=dev, ino=ino,
            uid=uid, gid=gid, flags=flags & (ASSUME_VALID | STAGE), extended=extended,
        ),
        at,
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1


def serialize_index(entries: Iterable[IndexEntry], digest_bytes: int) -> bytes:
    """An index of version 2, or 3 where an entry needs it, without extensions: git makes those again when it likes."""
    ordered = sorted(entries, key=lambda e: (e.path, e.stage))
    version = 3 if any(e.extended for e in ordered) else 2
    parts = [struct.pack(">4sII", b"DIRC", version, len(ordered))]
    parts += [_serialize_entry(e) for e in ordered]
    body = b"".join(parts)
    digest = hashlib.sha256(body) if digest_bytes == 32 else hashlib.sha1(body, usedforsecurity=False)
    return body + digest.digest()


def _serialize_entry(e: IndexEntry) -> bytes:
    flags = e.flags | min(len(e.path), 0xFFF) | (EXTENDED if e.extended else 0)
    raw = _STAT.pack(*e.ctime, *e.mtime, e.dev, e.ino, int(e.mode, 8), e.uid, e.gid, e.size) + bytes.fromhex(e.sha)
    raw += struct.pack(">H", flags)
    if e.extended:
        raw += struct.pack(">H", e.extended)
    raw += e.path
    return raw + b"\0" * (8 - len(raw) % 8)
