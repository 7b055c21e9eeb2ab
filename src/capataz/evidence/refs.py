"""Branch names, by the rules of ``git check-ref-format --branch``."""

from __future__ import annotations

import re

from capataz.contracts.errors import UsageError

_BAD = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")
HEADS = "refs/heads/"


def branch_problem(name: str) -> str | None:
    """What is wrong with a short branch name; None: nothing."""
    parts = name.split("/")
    if not name or name == "@" or name == "HEAD" or name.startswith("-"):
        return "is no branch name"
    if _BAD.search(name) or ".." in name or "@{" in name:
        return "holds a character that a branch name may not hold"
    if any(not p or p.startswith(".") or p.endswith(".lock") for p in parts) or name.endswith("."):
        return "has an empty part, or one that starts or ends in a way that git does not allow"
    if len(name.encode("utf-8", "surrogateescape")) > 200:
        return "is too long"
    return None


def branch_ref(name: str) -> str:
    """``refs/heads/NAME`` of a branch as a person writes it. Raises ``UsageError``."""
    short = name.removeprefix(HEADS)
    if name.startswith("refs/") and not name.startswith(HEADS):
        raise UsageError(f"--target {name!r}: only branches can be a target; write for example main")
    problem = branch_problem(short)
    if problem:
        raise UsageError(f"--target {name!r} {problem}; write for example main")
    return HEADS + short


def short(ref: str) -> str:
    """``main`` of ``refs/heads/main``."""
    return ref.removeprefix(HEADS)
