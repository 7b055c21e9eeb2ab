"""Values on their way into PostgreSQL and back, exactly.

JSON goes into ``json`` columns, whose text is kept as it is. A ``text`` column holds no NUL and no lone surrogate, so these
(and the escape itself) become U+001A and four hex digits.
"""

from __future__ import annotations

import json
import re
from typing import Any, overload

from pydantic_core import from_json, to_json

from capataz.contracts.canonical import JsonValue, canonical_text

_ODD = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def dump(value: JsonValue) -> str | None:
    """JSON text; ``None`` (SQL NULL) for None. Text that UTF-8 cannot carry is written in ASCII escapes."""
    if value is None:
        return None
    try:
        fast = to_json(value)                  # five times faster than the standard library's
    except (TypeError, ValueError):
        return _dump_slowly(value)
    return _dump_slowly(value) if b"NaN" in fast or b"Infinity" in fast else fast.decode()


def _dump_slowly(value: JsonValue) -> str:
    """Lone surrogates; other types than plain JSON data, or the error that names them; NaN, refused unless in a string."""
    try:
        return _encode_ascii(value)
    except (TypeError, ValueError):
        return _encode_ascii(json.loads(canonical_text(value)))


def load(data: bytes) -> JsonValue:
    """The value of stored JSON."""
    try:
        return from_json(data)
    except ValueError:                         # lone surrogates
        return json.loads(data)


@overload
def text(value: str) -> str: ...
@overload
def text(value: str | None) -> str | None: ...
def text(value: str | None) -> str | None:
    """A string as a ``text`` column takes it."""
    if value is None or not _ODD.search(value):
        return value
    return _ODD.sub(lambda m: f"\x1a{ord(m[0]):04x}", value)


def plain(value: str) -> str:
    """The inverse of ``text``."""
    if "\x1a" not in value:
        return value
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), value)


def plain_or_none(value: str | None) -> str | None:
    return None if value is None else plain(value)


def present(**fields: Any) -> dict[str, Any]:
    """Without the fields that are None: an absent field is NULL to ``jsonb_to_recordset``."""
    return {name: value for name, value in fields.items() if value is not None}
