"""What the checker says: findings, rules, and the place of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with an example that breaks it and one that keeps it: whole program files. A comment with the code ends the line
    of ``failing`` that the finding names."""

    code: str
    title: str
    text: str
    failing: str
    passing: str

    @property
    def severity(self) -> Severity:
        return "warning" if self.code >= "CPZ1" else "error"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """``line`` and ``col`` begin at 1, as editors show them."""

    file: str
    line: int
    col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One sentence says what is wrong, ``fix`` how to mend it."""

    place: Place
    code: str
    message: str
    fix: str

    @property
    def severity(self) -> Severity:
        return "warning" if self.code >= "CPZ1" else "error"

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code, "severity": self.severity, "file": self.place.file, "line": self.place.line, "col": self.place.col,
            "message": self.message, "fix": self.fix,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.place}: {self.severity} {self.code}: {self.message} Fix: {self.fix}"


def rules(*given: Rule) -> Mapping[str, Rule]:
    """A family's rules by code."""
    return {rule.code: rule for rule in given}
