"""Text of files as bytes: encodings, line endings, exact edits that leave every other byte alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from capataz.agents.tools.errors import ToolError

_BOMS = [(b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")]
_WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\xff\xfe\0\0": "utf-32-le", b"\0\0\xfe\xff": "utf-32-be"}
_MAGIC = [
    (b"\x89PNG", "PNG image"), (b"\xff\xd8\xff", "JPEG image"), (b"GIF8", "GIF image"), (b"%PDF", "PDF document"), (b"PK\x03\x04", "zip archive"),
    (b"\x1f\x8b", "gzip data"), (b"\x7fELF", "ELF program"), (b"SQLite format 3\0", "SQLite database"), (b"\0asm", "WebAssembly"),
]


@dataclass(frozen=True, slots=True)
class Text:
    """Bytes as a string that encodes back to the same bytes. ``codec`` latin-1 stands for "not UTF-8": one character a byte."""

    text: str
    codec: str
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        return self.bom + text.encode(self.codec)


def looks_binary(data: bytes) -> bool:
    return b"\0" in data[:8192] and not any(data.startswith(bom) for bom, _ in _BOMS)


def kind_of(data: bytes) -> str:
    return next((name for magic, name in _MAGIC if data.startswith(magic)), "binary data")


def decode(data: bytes) -> Text:
    """A reversible decoding: UTF-8, UTF-16 and UTF-32 with their mark, anything else byte by byte."""
    for bom, codec in _WIDE.items() if not data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) else reversed(_WIDE.items()):
        if data.startswith(bom):
            try:
                text = data[len(bom) :].decode(codec)
            except UnicodeDecodeError:
                break
            return Text(text, codec, bom)
    bom = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    try:
        return Text(data[len(bom) :].decode("utf-8"), "utf-8", bom)
    except UnicodeDecodeError:
        return Text(data.decode("latin-1"), "latin-1")


def describe(data: bytes) -> tuple[str, list[str]]:
    """The text to show and remarks on what is unusual about it."""
    known = decode(data)
    remarks: list[str] = []
    text = known.text
    if known.codec == "latin-1":
        text = data.decode("utf-8", "replace")
        remarks.append("not UTF-8 (probably Latin-1): bytes that do not decode are shown as \ufffd")
    elif known.codec != "utf-8":
        remarks.append(f"not UTF-8: {known.codec.upper()} with a byte order mark")
    elif known.bom:
        remarks.append("UTF-8 with a byte order mark")
    crlf, lf = text.count("\r\n"), text.count("\n")
    if crlf:
        remarks.append("CRLF line endings" if crlf == lf else "mixed line endings, CRLF and LF")
    if text and not text.endswith("\n"):
        remarks.append("no newline at the end")
    return text, remarks


def edit(data: bytes, old: str, new: str, count: int) -> tuple[bytes, list[int]]:
    """Replaces exactly ``count`` occurrences (0: all, at least one); gives the new bytes and their line numbers.

    A newline in ``old`` matches the file's own ending; newlines in ``new`` become the ending of the place.
    """
    if not old:
        raise ToolError("old is empty; give the exact text to replace, or use write_file for a whole file")
    if old == new:
        raise ToolError("old and new are equal: nothing would change")
    known = decode(data)
    for candidate in _as_in_file(known, data, old, new):
        spans = [match.span() for match in re.finditer(_pattern(candidate[0]), known.text)]
        if spans:
            break
    else:
        raise ToolError(_not_found(known, old))
    lines = [known.text.count("\n", 0, start) + 1 for start, _ in spans]
    if count and len(spans) != count:
        places = ", ".join(map(str, lines[:20])) + (", …" if len(lines) > 20 else "")
        raise ToolError(f"old matches {len(spans)} times (lines {places}), not {count}; add surrounding lines to make it unique, or pass count={len(spans)}")
    return known.encode(_replaced(known.text, spans, candidate[1])), lines


def _as_in_file(known: Text, data: bytes, old: str, new: str) -> list[tuple[str, str]]:
    """``old`` and ``new`` in the characters of ``known.text``. In a file that is not UTF-8 both readings are tried."""
    if known.codec != "latin-1":
        _writable(new, "utf-8")
        return [(old, new)]
    if "\ufffd" in old:
        raise ToolError("old holds \ufffd, which stands for bytes that are not UTF-8; choose a part of the text without it")
    readings: list[tuple[str, str]] = []
    for codec in ("utf-8", "latin-1") if _mostly_utf8(data) else ("latin-1", "utf-8"):
        if all(_fits(text, codec) for text in (old, new)):
            readings.append((old.encode(codec).decode("latin-1"), new.encode(codec).decode("latin-1")))
    if not readings:
        raise ToolError("the text has characters that cannot be written in this file's encoding")
    return readings


def _mostly_utf8(data: bytes) -> bool:
    shown = data.decode("utf-8", "replace")
    return sum(c > "\x7f" and c != "\ufffd" for c in shown) > shown.count("\ufffd")


def _fits(text: str, codec: str) -> bool:
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def _writable(text: str, codec: str) -> None:
    if not _fits(text, codec):
        raise ToolError("the text is not valid Unicode (a lone surrogate)")


def _pattern(old: str) -> re.Pattern[str]:
    parts = re.split(r"(\r?\n)", old)
    return re.compile("".join("\r?\n" if part == "\n" else re.escape(part) for part in parts))


def _replaced(text: str, spans: list[tuple[int, int]], new: str) -> str:
    out: list[str] = []
    end = 0
    for start, stop in spans:
        out += [text[end:start], with_endings(new, text[start:stop], ending_at(text, start, stop))]
        end = stop
    return "".join(out) + text[end:]


def ending_at(text: str, start: int, stop: int) -> str:
    """The line ending used at a place: that of its own line, else of the line before, else LF."""
    for at in (text.find("\n", stop), text.rfind("\n", 0, start)):
        if at >= 0:
            return "\r\n" if text[at - 1 : at] == "\r" else "\n"
    return "\n"


def with_endings(new: str, replaced: str, default: str) -> str:
    """``new`` with each bare newline in the style of the same newline of the replaced text, further ones in ``default``."""
    endings = re.findall(r"\r?\n", replaced)
    if default == "\n" and endings:
        default = endings[-1]
    lines = re.split(r"(?<!\r)\n", new)
    out = [lines[0]]
    for index, line in enumerate(lines[1:]):
        out += [endings[index] if index < len(endings) else default, line]
    return "".join(out)


def _not_found(known: Text, old: str) -> str:
    """Zero matches, and where it nearly matches."""
    wanted = [line.strip() for line in old.splitlines() if line.strip()]
    lines = [line.strip() for line in known.text.splitlines()]
    if not wanted:
        return "old matches 0 times: it is only white space that the file does not hold like this"
    near = [i + 1 for i, line in enumerate(lines) if line == wanted[0]]
    full = [n for n in near if [x for x in lines[n - 1 : n + 2 * len(wanted)] if x][: len(wanted)] == wanted]
    if full:
        return f"old matches 0 times; near line {full[0]} only white space differs: read the file and copy the text exactly"
    if near:
        return f"old matches 0 times; its first line is at line {near[0]}, what follows differs: read the file and copy the text exactly"
    return "old matches 0 times: read the file and copy the text exactly"


Ending = Literal["\n", "\r\n"]
