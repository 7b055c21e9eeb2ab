"""The blob port: content-addressed bytes."""

from __future__ import annotations

from typing import Protocol


class Blobs(Protocol):
    """``blob:SHA256`` names bytes by their digest; writing the same bytes twice stores them once."""

    async def put(self, data: bytes) -> str:
        """Stores bytes durably and returns ``blob:HEX``."""
        ...

    async def get(self, uri: str) -> bytes:
        """Raises ``NotFound``; bytes whose digest differs raise ``StoreUnavailable`` (the store is corrupt)."""
        ...

    async def close(self) -> None: ...
