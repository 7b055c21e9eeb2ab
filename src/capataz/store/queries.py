"""SQL by name: a ``.sql`` file holds blocks that begin with ``-- name: some_name``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- name: *(\w+)[ \t]*$", re.MULTILINE)


@cache
def _file(stem: str) -> dict[str, str]:
    text = (Path(__file__).parent / "sql" / f"{stem}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    names = parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{stem}.sql names a block twice")
    return {name: body.strip().rstrip(";") for name, body in zip(names, parts[2::2], strict=True)}


@cache
def sql(name: str) -> bytes:
    """The statement ``FILE.BLOCK``, as psycopg takes it (bytes: a trusted literal)."""
    stem, _, block = name.partition(".")
    return _file(stem)[block].encode("utf-8")
