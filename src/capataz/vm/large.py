"""Large values live in the blob store; the journal holds a reference."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_json as fast_json

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import JsonValue, canonical_bytes, is_plain, to_json

LIMIT_BYTES = 64 << 10
_MARK = "$blob"


class LargeValues:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def outward(self, value: Any) -> JsonValue:
        """The form that the journal keeps: the value, or a reference to its canonical bytes."""
        if _surely_small(value) and not is_reference(value):
            return value
        data = canonical_bytes(value)
        if len(data) <= LIMIT_BYTES and not is_reference(value):
            return to_json(value)
        return {_MARK: await self._blobs.put(data), "bytes": len(data)}

    async def inward(self, kept: JsonValue) -> JsonValue:
        """The value behind what the journal keeps."""
        if is_reference(kept):
            return json.loads(await self._blobs.get(kept[_MARK]))
        return kept


def is_reference(value: JsonValue) -> bool:
    return isinstance(value, dict) and set(value) == {_MARK, "bytes"}


def _surely_small(value: Any) -> bool:
    """Plain JSON data below the limit. Almost every value is that, and this finds it ten times faster than canonical JSON."""
    if value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < LIMIT_BYTES // 4):
        return True
    if not is_plain(value):
        return False
    try:
        data = fast_json(value)
    except ValueError:  # a lone surrogate, a circle: refused by ``canonical_bytes``, as are NaN and infinity
        return False
    return len(data) <= LIMIT_BYTES and b"NaN" not in data and b"Infinity" not in data
