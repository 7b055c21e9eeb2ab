"""Unified diffs: parsed with care for what models get wrong (counts, paths), applied strictly (all hunks or none).

Why not a library: ``unidiff`` and ``whatthepatch`` parse strings only and refuse wrong counts; neither applies over CRLF or odd names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from capataz.agents.tools.errors import ToolError
from capataz.agents.tools.paths import parse_path, show_path

_HUNK = re.compile(r"@@(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))?)?(?: @@.*| *@@|.*)$")


@dataclass(slots=True)
class Hunk:
    """``lines``: (mark, text without line ending), mark one of space, ``-``, ``+``."""

    number: int
    start: int | None
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    old_without_newline: bool = False
    new_without_newline: bool = False

    def old(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "+"]


@dataclass(slots=True)
class FilePatch:
    """``old`` None: a new file; ``new`` None: a deletion; both and different: a rename."""

    old: bytes | None
    new: bytes | None
    mode: int | None = None
    hunks: list[Hunk] = field(default_factory=list[Hunk])

    @property
    def shown(self) -> str:
        return show_path(self.new or self.old or b"?")


def parse(patch: str) -> list[FilePatch]:
    """The files of a unified diff. Raises ``ToolError`` when it is none."""
    if "*** Begin Patch" in patch:
        raise ToolError("this is not a unified diff; write lines like '--- a/x.py', '+++ b/x.py', '@@ -1,3 +1,4 @@'")
    lines = patch.replace("\r\n", "\n").split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    files = _Parser(lines).files()
    if not files:
        raise ToolError("the patch names no file; it needs '--- a/PATH' and '+++ b/PATH' lines before its hunks")
    return files


class _Parser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def files(self) -> list[FilePatch]:
        files: list[FilePatch] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git ") or self._header():
                files.append(self._file())
            elif line.startswith("@@"):
                raise ToolError(f"line {self._at + 1} of the patch: a hunk without '--- a/PATH' and '+++ b/PATH' before it")
            else:
                self._at += 1
        return files

    def _header(self) -> bool:
        following = self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""
        return self._lines[self._at].startswith("--- ") and following.startswith("+++ ")

    def _file(self) -> FilePatch:
        extended = self._extended()
        if self._at < len(self._lines) and self._header():
            old, new = (_header_path(self._lines[self._at + i]) for i in (0, 1))
            old, new = _strip_prefixes(old, new)
            self._at += 2
        else:
            old, new = extended.old, extended.new
        if old is None and new is None:
            raise ToolError("the patch has a file without a path")
        patch = FilePatch(old, new, extended.mode)
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            patch.hunks.append(self._hunk(len(patch.hunks) + 1))
        return patch

    def _extended(self) -> FilePatch:
        """Git's lines between ``diff --git`` and the first hunk or header."""
        found = FilePatch(None, None)
        if not self._lines[self._at].startswith("diff --git "):
            return found
        names = _git_names(self._lines[self._at][11:])
        old = new = names
        self._at += 1
        while self._at < len(self._lines) and not self._header() and not self._lines[self._at].startswith(("diff --git ", "@@")):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith(("GIT binary patch", "Binary files ")):
                raise ToolError("binary patches cannot be applied; use run_command to make the file")
            if line.startswith(("new file mode ", "new mode ")):
                found.mode = 0o755 if line.endswith("755") else 0o644
            if line.startswith("new file mode "):
                old = None
            elif line.startswith("deleted file mode "):
                new = None
            elif line.startswith("rename from "):
                old = parse_path(line[12:])
            elif line.startswith("rename to "):
                new = parse_path(line[10:])
        found.old, found.new = old, new
        return found

    def _hunk(self, number: int) -> Hunk:
        match = _HUNK.match(self._lines[self._at])
        assert match is not None
        hunk = Hunk(number, int(match[1]) if match[1] is not None else None)
        self._at += 1
        begin = self._at
        counts = None if match[1] is None else (int(match[2] or 1), int(match[4] or 1))
        if counts is None or not self._counted(hunk, *counts):
            self._at = begin
            hunk.lines.clear()
            self._marked(hunk)
        self._no_newline(hunk)
        if not hunk.lines:
            raise ToolError(f"hunk {number} (line {begin} of the patch) is empty")
        return hunk

    def _counted(self, hunk: Hunk, old: int, new: int) -> bool:
        """Reads as many lines as the header says; False when it is wrong about them."""
        while old > 0 or new > 0:
            if self._at >= len(self._lines):
                return False
            line = self._lines[self._at]
            mark, text = (line[:1] or " "), line[1:]
            if self._next_file():
                return False
            if mark == "\\":
                self._no_newline(hunk)
                continue
            if mark not in " -+":
                return False
            old -= mark != "+"
            new -= mark != "-"
            hunk.lines.append((mark, text))
            self._at += 1
        following = self._lines[self._at] if self._at < len(self._lines) else ""
        more = following[:1] in ("+", "-", " ") and not self._header_at_end()
        return old == 0 and new == 0 and not more

    def _next_file(self) -> bool:
        """A header that stands where a wrong count still expects lines (and not a removed line that looks like one)."""
        line = self._lines[self._at]
        return line.startswith(("--- a/", '--- "a/', "--- /dev/null")) and self._header() and self._lines[self._at + 1].startswith(("+++ b/", '+++ "b/', "+++ /dev/null"))

    def _header_at_end(self) -> bool:
        return self._at < len(self._lines) and (self._header() or not self._lines[self._at].strip())

    def _marked(self, hunk: Hunk) -> None:
        """Reads lines by their marks up to what cannot belong to the hunk."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("\\"):
                self._no_newline(hunk)
                continue
            if (line and line[0] not in " -+") or self._header():
                break
            hunk.lines.append((line[:1] or " ", line[1:]))
            self._at += 1
        while hunk.lines and hunk.lines[-1] == (" ", "") and self._at < len(self._lines):
            hunk.lines.pop()                   # blank lines between two files

    def _no_newline(self, hunk: Hunk) -> None:
        while self._at < len(self._lines) and self._lines[self._at].startswith("\\"):
            mark = hunk.lines[-1][0] if hunk.lines else " "
            hunk.old_without_newline |= mark != "+"
            hunk.new_without_newline |= mark != "-"
            self._at += 1


def _header_path(line: str) -> bytes | None:
    name = line[4:]
    if not name.startswith('"'):
        name = name.split("\t", 1)[0].rstrip()
    else:
        name = name[: name.rindex('"') + 1]
    return None if name == "/dev/null" else parse_path(name)


def _strip_prefixes(old: bytes | None, new: bytes | None) -> tuple[bytes | None, bytes | None]:
    def stripped(path: bytes | None) -> bytes | None:
        return path[2:] if path is not None and path[:2] in (b"a/", b"b/") else path

    if (old is None or old.startswith(b"a/")) and (new is None or new.startswith(b"b/")):
        return stripped(old), stripped(new)
    return old, new


def _git_names(rest: str) -> bytes | None:
    """The path of ``diff --git a/X b/X``; None when the two differ (a rename says them again below)."""
    if rest.startswith('"'):
        half = rest[: len(rest) // 2].rstrip()
        return _strip_prefixes(parse_path(half), None)[0]
    half = len(rest) // 2
    old, new = rest[:half], rest[half + 1 :]
    return parse_path(old[2:]) if old[2:] == new[2:] else None


def apply(text: str, patch: FilePatch) -> tuple[str, list[str]]:
    """``text`` with all hunks applied, and a sentence for each that was rejected (then the text means nothing)."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    rejected: list[str] = []
    drift = done = 0
    for hunk in patch.hunks:
        at = _locate(lines, hunk, drift, done)
        if isinstance(at, str):
            rejected.append(f"hunk {hunk.number} of {patch.shown}: {at}")
            continue
        new = _merged(lines, at, hunk)
        if hunk.start:
            drift = at - (hunk.start - 1 if hunk.old() else hunk.start) + len(new) - len(hunk.old())
        lines[at : at + len(hunk.old())] = new
        done = at + len(new)
    return "".join(lines), rejected


def _locate(lines: list[str], hunk: Hunk, drift: int, done: int) -> int | str:
    """Where the hunk's old lines stand (from 0), or why not."""
    old = hunk.old()
    if not old:
        at = (hunk.start or 0) + drift
        return at if done <= at <= len(lines) else ("adds lines without context to a file that has some" if hunk.start is None else f"line {hunk.start} is past the end")
    expected = (hunk.start or 1) - 1 + drift
    bare = [line.rstrip("\r\n") for line in lines]
    wanted = [line.rstrip("\r") for line in old]
    places = [i for i in range(done, len(bare) - len(wanted) + 1) if bare[i : i + len(wanted)] == wanted]
    if not places:
        return _why_not(bare, wanted, expected)
    if expected in places:
        return expected
    if len(places) > 1 and hunk.start is None:
        return f"its lines stand at {len(places)} places (lines {', '.join(str(p + 1) for p in places[:9])}); give line numbers or more context"
    return min(places, key=lambda p: abs(p - expected))


def _why_not(bare: list[str], wanted: list[str], expected: int) -> str:
    for offset, line in enumerate(wanted):
        there = bare[expected + offset] if 0 <= expected + offset < len(bare) else None
        if there != line:
            found = "the file ends" if there is None else f"the file has {there[:80]!r}"
            return f"does not match at line {expected + offset + 1}: wanted {line[:80]!r}, {found}"
    return "overlaps the hunk before it"


def _merged(lines: list[str], at: int, hunk: Hunk) -> list[str]:
    """The new lines; kept ones byte for byte, added ones with the line ending of their neighbours."""
    around = lines[max(at - 1, 0) : at + len(hunk.old()) + 1]
    ending = "\r\n" if around and sum(line.endswith("\r\n") for line in around) * 2 > sum(line.endswith("\n") for line in around) else "\n"
    out: list[str] = []
    position = at
    for mark, text in hunk.lines:
        if mark == "+":
            out.append(text.rstrip("\r") + ending)
            continue
        if mark == " ":
            out.append(lines[position])
        position += 1
    return _with_end(out, lines, at, position, hunk, ending)


def _with_end(out: list[str], lines: list[str], at: int, position: int, hunk: Hunk, ending: str) -> list[str]:
    """The newline at the end of the file: as the patch says, else as it was."""
    if at and out and not lines[at - 1].endswith("\n"):
        lines[at - 1] += ending                # lines added after a last line that had no newline
    if position < len(lines) or not out:
        return [line if line.endswith("\n") else line + ending for line in out]
    last_had_none = bool(lines) and not lines[-1].endswith("\n")
    bare_end = hunk.new_without_newline or (last_had_none and not hunk.old_without_newline and position > at)
    out = [line if line.endswith("\n") else line + ending for line in out]
    if bare_end:
        out[-1] = out[-1].removesuffix("\n").removesuffix("\r")
    return out
