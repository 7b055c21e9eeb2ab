"""Ids: short, sortable by time, safe in file names, branch names and URLs."""

from __future__ import annotations

import os
import re
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case
_RUN = re.compile(r"^r[0-9a-hjkmnp-tv-z]{16}$")


def _base32(number: int, width: int) -> str:
    digits: list[str] = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))


def new_id(prefix: str) -> str:
    """``prefix``, 9 characters of milliseconds, 7 of chance: sorts by creation time."""
    return prefix + _base32(int(time.time() * 1000), 9) + _base32(int.from_bytes(os.urandom(5), "big"), 7)


def new_run_id() -> str:
    return new_id("r")


def is_run_id(text: str) -> bool:
    return bool(_RUN.match(text))
