"""Hostile bytes as text that a model and a person can read: nothing hidden, nothing changed in silence."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")
_WIDE = re.compile(r"[^\x00-\x7f]")


@lru_cache(maxsize=4096)
def _visible(char: str) -> str:
    """Direction marks and other invisible format characters as escapes; what can be seen as it is."""
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"    # a byte that is not UTF-8
    if unicodedata.category(char) in ("Cf", "Cs", "Co", "Zl", "Zp"):
        return char.encode("unicode_escape").decode("ascii")
    return char


def readable(data: bytes) -> tuple[str, int]:
    """The text, and how many places in it are escapes: bytes that are not UTF-8, control and invisible characters."""
    escaped = 0

    def control(match: re.Match[str]) -> str:
        nonlocal escaped
        escaped += 1
        return f"\\x{ord(match[0]):02x}"

    def wide(match: re.Match[str]) -> str:
        nonlocal escaped
        shown = _visible(match[0])
        escaped += shown != match[0]
        return shown

    text = data.decode("utf-8", "surrogateescape")
    return _WIDE.sub(wide, _CONTROL.sub(control, text)), escaped


def escape_note(escaped: int) -> str:
    """The line that says that a text holds escapes; empty when it holds none."""
    if not escaped:
        return ""
    return "[capataz: bytes that are not UTF-8, control and invisible characters are shown as \\xNN and \\uNNNN]\n"
