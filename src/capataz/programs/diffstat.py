"""Lines added and removed per file, counted from a unified diff."""

from __future__ import annotations

import re
from typing import Any

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_FILE = re.compile(r"^diff --git (.*)$")


def diffstat(diff: str) -> list[dict[str, Any]]:
    """``[{"file", "added", "removed", "binary"}]`` in the diff's order; ``file`` is git's own spelling of the new path.

    Hunk headers say how many lines follow, so that a line of content that looks like a header is not taken for one."""
    files: list[dict[str, Any]] = []
    old = new = 0
    for line in diff.split("\n"):
        if old > 0 or new > 0:
            old, new = _count(files, line, old, new)
        elif match := _FILE.match(line):
            files.append({"file": _name(match[1]), "added": 0, "removed": 0, "binary": False})
        elif match := _HUNK.match(line):
            old, new = int(match[1] or 1), int(match[2] or 1)
        elif files and line.startswith(("GIT binary patch", "Binary files ")):
            files[-1]["binary"] = True
    return files


def _count(files: list[dict[str, Any]], line: str, old: int, new: int) -> tuple[int, int]:
    if line.startswith("+"):
        files[-1]["added"] += 1
        return old, new - 1
    if line.startswith("-"):
        files[-1]["removed"] += 1
        return old - 1, new
    return (old, new) if line.startswith("\\") else (old - 1, new - 1)


def _name(pair: str) -> str:
    """The new path of ``a/X b/X`` (or git's quoted form of it)."""
    if pair.endswith('"') and ' "b/' in pair:
        return pair[pair.rindex(' "b/') + 4 : -1]
    half = (len(pair) - 1) // 2
    if pair[:half].removeprefix("a/") == pair[half + 1 :].removeprefix("b/"):
        return pair[half + 1 :].removeprefix("b/")
    return pair.rpartition(" b/")[2]
