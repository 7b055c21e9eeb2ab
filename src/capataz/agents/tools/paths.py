"""Paths as models write them, and as they see them.

A path is relative to the workspace. It is shown as it is when it is printable UTF-8; any other (control characters, bytes that are
no UTF-8, or a name in double quotes) is shown as git shows it: in double quotes with C escapes, ``"latin-\\351.txt"``,
``"new\\nline.txt"``. Tools take both forms back, and also ``{"b64": ...}`` and strings with surrogate escapes (``os.fsdecode``).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from capataz.agents.tools.errors import ToolError
from capataz.contracts.globs import compile_glob, matches_any
from capataz.contracts.sandbox import WORKSPACE

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_NAMES = {value: key for key, value in _ESCAPES.items()}
_QUOTED = re.compile(r'(?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*')


def show_path(path: bytes) -> str:
    """The path as a model sees it and may write it back."""
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return _quote(path)
    if text.isprintable() and not (len(text) > 1 and text[0] == text[-1] == '"'):
        return text
    return _quote(path)


def _quote(path: bytes) -> str:
    out: list[str] = []
    for char in path.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in _NAMES:
            out.append("\\" + _NAMES[code])
        elif char.isprintable():
            out.append(char)
        else:
            out += [f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape")]
    return '"' + "".join(out) + '"'


def parse_path(value: Any) -> bytes:
    """The bytes that an argument names; any of the forms above. Raises ``ToolError``."""
    if isinstance(value, dict) and set(value) == {"b64"}:  # pyright: ignore[reportUnknownArgumentType]
        try:
            return base64.b64decode(value["b64"], validate=True)  # pyright: ignore[reportUnknownArgumentType]
        except (binascii.Error, TypeError, ValueError):
            raise ToolError("path: b64 holds no base64 text") from None
    if not isinstance(value, str):
        raise ToolError("path must be a string")
    if len(value) > 1 and value[0] == value[-1] == '"':
        return _unquote(value)
    return _encode(value)


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ToolError("path is not Unicode text; write odd names in double quotes with \\ooo escapes, as they are listed") from None


def _unquote(text: str) -> bytes:
    inner = text[1:-1]
    if not _QUOTED.fullmatch(inner):
        raise ToolError('a path in double quotes needs C escapes, as it is listed: \\" for a quote, \\\\ for a backslash, \\351 for a byte')
    out = bytearray()
    for part in re.findall(r"\\[0-3][0-7]{2}|\\.|[^\\]+", inner, re.DOTALL):
        if part[0] != "\\":
            out += _encode(part)
        elif part[1:] in _ESCAPES:
            out.append(_ESCAPES[part[1:]])
        else:
            out.append(int(part[1:], 8))
    return bytes(out)


def relative(value: Any) -> bytes:
    """A path inside the workspace without ``.`` parts; ``b"."`` is the root. Absolute paths and ``..`` are refused."""
    path = parse_path(value)
    if b"\0" in path:
        raise ToolError("path holds a NUL byte")
    if path.startswith(b"/"):
        raise _absolute(path)
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ToolError(f"path {show_path(path)} has a '..' part: paths are relative to the workspace and stay inside it", refused="path")
    return b"/".join(parts) or b"."


def _absolute(path: bytes) -> ToolError:
    inside = WORKSPACE.encode() + b"/"
    if path.startswith(inside) or path == inside[:-1]:
        return ToolError(f"path {show_path(path)} is absolute: write it relative to the workspace, {show_path(path[len(inside):] or b'.')}")
    return ToolError(f"path {show_path(path)} is absolute: only files of the workspace can be used, by relative paths", refused="path")


class WriteScope:
    """Which paths the edit tools may write. ``globs`` None: all but the protected ones."""

    def __init__(self, globs: tuple[str, ...] | None, protected: tuple[str, ...]) -> None:
        self._globs = globs
        self._protected = protected
        for text in (*(globs or ()), *protected):
            compile_glob(text)

    def check(self, path: bytes) -> None:
        """Raises ``ToolError`` (a refused path) when the path must not be written."""
        shown = show_path(path)
        if path == b".":
            raise ToolError("path names the workspace itself, not a file")
        if path.split(b"/", 1)[0].lower() == b".git":
            raise ToolError(f"{shown}: .git is not part of the work", refused="path")
        if matches_any(self._protected, path):
            raise ToolError(f"{shown} is protected and cannot be changed", refused="path")
        if self._globs is not None and not matches_any(self._globs, path):
            scope = ", ".join(self._globs) or "nothing: this task is read-only"
            raise ToolError(f"{shown} is outside the write scope of this task ({scope})", refused="path")
