"""Canonical JSON: one byte string for equal values, hence one digest.

Rules (a subset of RFC 8785): UTF-8, object keys sorted by code point, no white space, no NaN or infinity, integers as
they are, floats by ``repr``; a pydantic model is its JSON dump, a ``Decimal`` its string, bytes ``{"b64": ...}``.
"""

# pyright: standard
# JSON data has no narrower type than Any: strict checks would only say so at each line.
from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from capataz.contracts.errors import ValueNotSerializable

JsonValue = Any  # None | bool | int | float | str | list[JsonValue] | dict[str, JsonValue]


_ATOMS = frozenset({str, int, bool, type(None)})
_LEAVES = _ATOMS | {float}


def to_json(value: Any) -> JsonValue:
    """``value`` as plain JSON data. Raises ``ValueNotSerializable`` naming the type."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:  # what almost every value is made of comes first, and atoms need no call
        return {k if type(k) is str else _key(k): v if type(v) in _ATOMS else to_json(v) for k, v in value.items()}
    if kind is list:
        return [v if type(v) in _ATOMS else to_json(v) for v in value]
    if isinstance(value, (bool, int, str)) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueNotSerializable(f"{value!r} has no JSON form; use None or a string")
        return value
    if isinstance(value, dict):
        return {_key(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(v) for v in value), key=canonical_bytes)
    if isinstance(value, bytes):
        return bytes_to_json(value)
    if hasattr(value, "model_dump"):
        return to_json(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (Decimal, UUID, PurePath)):
        return str(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise ValueNotSerializable(f"a {type(value).__name__} has no JSON form; use a pydantic model, dataclass or plain data")


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if not isinstance(key, str):
        raise ValueNotSerializable(f"a JSON object needs string keys, not {type(key).__name__}")
    return key


def bytes_to_json(data: bytes) -> JsonValue:
    """UTF-8 bytes as a string, others as ``{"b64": ...}``: how paths and outputs appear in every JSON of ours."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode("ascii")}


def bytes_from_json(value: JsonValue) -> bytes:
    """The inverse of ``bytes_to_json``."""
    if isinstance(value, str):
        return value.encode("utf-8")
    return base64.b64decode(value["b64"])


def is_plain(value: Any) -> bool:
    """Whether it is JSON data already: dicts with string keys, lists, strings, numbers, None, of just these types."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():  # noqa: SIM110  a generator costs half as much again, and this is asked of every value
            if type(key) is not str or (type(item) not in _LEAVES and not is_plain(item)):
                return False
        return True
    if kind is list:
        return all(type(item) in _LEAVES or is_plain(item) for item in value)
    return kind in _LEAVES


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_text(value: Any) -> str:
    """Canonical JSON as a string."""
    try:
        if is_plain(value):
            try:
                return _encode(value)
            except ValueError:  # NaN, infinity, or a circle: said properly below
                pass
        return _encode(to_json(value))
    except RecursionError as error:
        raise ValueNotSerializable("the value is nested too deeply or refers to itself") from error


def canonical_bytes(value: Any) -> bytes:
    """Canonical JSON as UTF-8 bytes. A lone surrogate (not a Unicode scalar) is refused."""
    try:
        return canonical_text(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueNotSerializable("a string holds a lone surrogate, which is not Unicode text") from error


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, as 64 hex digits."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def digest_bytes(data: bytes) -> str:
    """SHA-256 of raw bytes, as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()
