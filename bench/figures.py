"""Figures of repeated measurements, and the rows of the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Mark = Literal["pass", "FAIL", "info", "not installed"]


@dataclass(frozen=True, slots=True)
class Series:
    """Repetitions of one measurement, in ``unit``."""

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit, "median": self.median, "min": min(self.values), "max": max(self.values),
            "repetitions": len(self.values), "values": list(self.values),
        }

    def __str__(self) -> str:
        return f"{short(self.median)} ({short(min(self.values))}..{short(max(self.values))}) {self.unit}"


def series(values: Sequence[float], unit: str) -> Series:
    return Series(tuple(values), unit)


def short(value: float) -> str:
    """Three significant digits, without exponents."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Row:
    """``judged`` is what the target is about (a ratio or a figure); ``limit`` None: shown for information only.

    ``missing``: the contestant's package that is not installed; then there are no figures of it.
    """

    suite: str
    name: str
    ours: Series
    against: str = ""
    theirs: Series | None = None
    judged: float | None = None
    judged_unit: str = "x"
    limit: float | None = None
    strictly: bool = False                     # below the limit, not at it
    note: str = ""
    missing: str | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def mark(self) -> Mark:
        if self.missing is not None:
            return "not installed"
        if self.limit is None or self.judged is None:
            return "info"
        within = self.judged < self.limit if self.strictly else self.judged <= self.limit
        return "pass" if within else "FAIL"

    @property
    def target(self) -> str:
        if self.limit is None:
            return ""
        return f"{'<' if self.strictly else '<='} {short(self.limit)} {self.judged_unit}"

    def to_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite, "name": self.name, "against": self.against or None, "mark": self.mark,
            "judged": self.judged, "judged_unit": self.judged_unit, "limit": self.limit, "target": self.target or None,
            "ours": self.ours.to_json(), "theirs": self.theirs.to_json() if self.theirs is not None else None,
            "missing": self.missing, "note": self.note or None, **self.extra,
        }


def ratio(ours: Series, theirs: Series) -> float:
    """Median of the ratios pair by pair: interleaved repetitions saw the same machine."""
    return statistics.median(a / b for a, b in zip(ours.values, theirs.values, strict=True))


def compared(
    suite: str, name: str, ours: Series, against: str, theirs: Series, *, limit: float | None, strictly: bool = False, note: str = ""
) -> Row:
    """A row whose target is a ratio."""
    return Row(suite, name, ours, against, theirs, ratio(ours, theirs), "x", limit, strictly, note)


def bounded(suite: str, name: str, ours: Series, *, limit: float | None, note: str = "") -> Row:
    """A row whose target is the median itself, in its own unit."""
    return Row(suite, name, ours, judged=ours.median, judged_unit=ours.unit, limit=limit, note=note)
