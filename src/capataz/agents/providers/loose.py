"""Reading JSON of which nobody promises anything: a missing, null or wrong value reads as an empty one."""

from __future__ import annotations

from typing import Any, cast


def obj(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objs(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [cast("dict[str, Any]", v) for v in cast("list[Any]", value) if isinstance(v, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    """A count: whole and not negative, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
