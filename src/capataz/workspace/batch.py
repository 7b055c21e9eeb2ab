"""Many new objects at once: loose while they are few, one pack when a worker installed a folder of dependencies."""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO

from capataz.contracts.errors import GitFailed
from capataz.workspace.objects import ObjectStore

_FEW = 100
_FEW_BYTES = 16 << 20
_KINDS = {"commit": 1, "tree": 2, "blob": 3}


class Batch:
    """Objects are readable after ``finish``, not before; a crash before it leaves nothing but a temporary file of no name."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._waiting: dict[str, tuple[str, bytes]] = {}
        self._waiting_bytes = 0
        self._packed: set[str] = set()
        self._pack: IO[bytes] | None = None

    def write(self, kind: str, data: bytes) -> str:
        sha = self._store.hash(kind, data)
        if sha in self._waiting or sha in self._packed or self._store.has_loose(sha):
            return sha
        self._waiting[sha] = (kind, data)
        self._waiting_bytes += len(data)
        if len(self._waiting) > _FEW or self._waiting_bytes > _FEW_BYTES:
            self._spill()
        return sha

    def finish(self) -> None:
        if self._pack is None:
            for kind, data in self._waiting.values():
                self._store.write(kind, data)
            return
        self._spill()
        self._close_pack(self._pack)
        with self._pack as pack:
            pack.seek(0)
            result = self._store.git.run_from(pack, "index-pack", "--stdin")
        if result.code != 0:
            raise GitFailed(f"the snapshot cannot be stored: {result.words()}", retryable=True)

    def _spill(self) -> None:
        if self._pack is None:
            self._pack = tempfile.TemporaryFile(dir=self._store.git.git_dir)  # noqa: SIM115
            self._pack.write(bytes(12))
        for sha, (kind, data) in self._waiting.items():
            self._pack.write(_entry_header(_KINDS[kind], len(data)) + zlib.compress(data, 1))
            self._packed.add(sha)
        self._waiting, self._waiting_bytes = {}, 0

    def _close_pack(self, pack: IO[bytes]) -> None:
        pack.seek(0)
        pack.write(struct.pack(">4sII", b"PACK", 2, len(self._packed)))
        digest = self._store.digest()
        for chunk in _chunks(pack):
            digest.update(chunk)
        pack.write(digest.digest())
        pack.flush()


def _chunks(pack: IO[bytes]) -> Iterator[bytes]:
    pack.seek(0)
    while chunk := pack.read(1 << 20):
        yield chunk


def _entry_header(kind: int, size: int) -> bytes:
    """Kind and size as gitformat-pack writes them: four bits of the size, then seven a byte."""
    first, size = (kind << 4) | (size & 0x0F), size >> 4
    out = bytearray()
    while size:
        out.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    out.append(first)
    return bytes(out)
