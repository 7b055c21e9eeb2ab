"""Printing. Text of repositories, models and tools is hostile: control characters and direction marks are made visible.

People read stderr while something runs; stdout carries the result, with ``--json`` one JSON object and nothing else.
"""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_DIRECTION = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
_BREAKS = {0x2028, 0x2029, 0x85}


def soften() -> None:
    """Streams that cannot show a character show its escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def clean(text: object, *, lines: bool = False) -> str:
    """``text`` without terminal control: escapes, controls, direction marks and lone surrogates become ``\\xNN``-like text.

    ``lines``: keeps line breaks and tabs; otherwise they become one space."""
    value = str(text)
    if not lines:
        value = " ".join(value.split())
    if value.isascii() and value.isprintable():
        return value
    return "".join(_visible(char, lines) for char in value)


def _visible(char: str, lines: bool) -> str:
    code = ord(char)
    if lines and char in "\n\t":
        return char
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    if code in _DIRECTION or code in _BREAKS or 0xD800 <= code < 0xE000:
        return f"\\u{code:04x}"
    return char


def emit_json(value: Any) -> None:
    """One JSON object on one line of stdout, flushed: what another program reads."""
    if sys.stdout is not None:
        sys.stdout.write(json.dumps(value, ensure_ascii=True, separators=(", ", ": ")) + "\n")
        sys.stdout.flush()


def emit_line(text: str = "") -> None:
    """A line for people on stdout, cleaned."""
    if sys.stdout is not None:
        sys.stdout.write(clean(text, lines=True) + "\n")


def emit_bytes(data: bytes) -> None:
    """A diff or a log: as it is into a pipe or a file, cleaned on a terminal."""
    if sys.stdout is None:
        return
    if sys.stdout.isatty():
        sys.stdout.write(clean(data.decode("utf-8", "replace"), lines=True))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def stderr_line(text: str) -> None:
    """A line for people on stderr, cleaned. A reader that is gone is no reason to stop."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(clean(text, lines=True) + "\n")
        sys.stderr.flush()
    except OSError:
        pass


def console(*, err: bool = False) -> Console:
    """A Rich console; markup and highlighting are off, so that text is only text. ``NO_COLOR`` and dumb terminals are honoured."""
    from rich.console import Console

    return Console(stderr=err, markup=False, highlight=False, emoji=False, soft_wrap=True)


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
