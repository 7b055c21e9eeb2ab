"""Amounts that may have no limit, and what the whole program can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capataz.vm.checker.finding import Place


@dataclass(frozen=True, slots=True)
class Amount:
    """``value`` None: no limit can be told, because of what stands at ``place``."""

    value: float | None = 0
    place: Place | None = None
    why: str = ""

    def __add__(self, other: Amount) -> Amount:
        if self.value is None or other.value is None:
            return self if self.value is None else other
        return Amount(self.value + other.value)

    def times(self, count: Amount) -> Amount:
        if self.value == 0 or count.value == 0:
            return Amount(0)
        if self.value is None or count.value is None:
            return count if count.value is None else self
        return Amount(self.value * count.value)

    def most(self, other: Amount) -> Amount:
        if self.value is None or other.value is None:
            return self if self.value is None else other
        return self if self.value >= other.value else other

    def capped(self, limit: float | None) -> Amount:
        return self if limit is None or (self.value is not None and self.value <= limit) else Amount(limit)


ZERO = Amount(0)


@dataclass(frozen=True, slots=True)
class Use:
    """What code can use: agents started, model turns, dollars."""

    agents: Amount = ZERO
    turns: Amount = ZERO
    usd: Amount = ZERO

    def __add__(self, other: Use) -> Use:
        return Use(self.agents + other.agents, self.turns + other.turns, self.usd + other.usd)

    def times(self, count: Amount) -> Use:
        return Use(self.agents.times(count), self.turns.times(count), self.usd.times(count))

    def most(self, other: Use) -> Use:
        return Use(self.agents.most(other.agents), self.turns.most(other.turns), self.usd.most(other.usd))

    def capped(self, limits: Limits) -> Use:
        return Use(self.agents.capped(limits.agents), self.turns.capped(limits.turns), self.usd.capped(limits.usd))

    @property
    def nothing(self) -> bool:
        return self == Use()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a ``budget(...)`` says by literals; None: nothing, or not by a literal."""

    agents: float | None = None
    turns: float | None = None
    usd: float | None = None
    any: bool = False                          # there is a budget, literal or not


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a program can use; ``str()`` is the line that ends a check."""

    program: str
    use: Use

    def to_json(self) -> dict[str, Any]:
        parts = {"agents": self.use.agents, "turns": self.use.turns, "usd": self.use.usd}
        found: dict[str, Any] = {name: _number(name, amount) for name, amount in parts.items()}
        found["program"] = self.program
        found["unbounded"] = [
            {"what": name, "file": a.place.file, "line": a.place.line, "why": a.why}
            for name, a in parts.items() if a.value is None and a.place is not None
        ]  # fmt: skip
        return found

    def __str__(self) -> str:
        use = self.use
        known = [
            text for amount, text in (
                (use.agents, f"{_count(use.agents, 'agent')}"), (use.turns, f"{_count(use.turns, 'turn')}"), (use.usd, f"${use.usd.value:.2f}" if use.usd.value is not None else "")
            ) if amount.value is not None
        ]  # fmt: skip
        reasons: dict[tuple[Place | None, str], list[str]] = {}
        for what, amount in (("agents", use.agents), ("turns", use.turns), ("money", use.usd)):
            if amount.value is None:
                reasons.setdefault((amount.place, amount.why), []).append(what)
        parts = [f"at most {', '.join(known)}"] if known else []
        for (place, why), whats in reasons.items():
            what = "" if not known and len(reasons) == 1 else f"{' and '.join(whats)} "
            parts.append(f"{what}unbounded because line {place.line if place else 1} of {place.file if place else '?'} {why}")
        return "; ".join(parts)


def _number(name: str, amount: Amount) -> Any:
    if amount.value is None:
        return None
    return f"{amount.value:.2f}" if name == "usd" else int(amount.value)


def _count(amount: Amount, noun: str) -> str:
    count = int(amount.value or 0)
    return f"{count} {noun}{'' if count == 1 else 's'}"
