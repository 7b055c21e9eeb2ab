"""Budgets as a program writes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import UsageError
from capataz.contracts.units import seconds, usd

Duration = str | int | float | timedelta


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an account; None means no limit of its own. Money in dollars, times in seconds."""

    usd: Decimal | None = None
    tokens: int | None = None
    turns: int | None = None
    agents: int | None = None
    tool_calls: int | None = None
    wall_s: float | None = None
    sandbox_s: float | None = None

    def limits(self) -> dict[str, JsonValue]:
        """As the journal holds it: only what is limited, money as text."""
        values = {name: getattr(self, name) for name in Budget.__slots__}
        return {k: str(v) if isinstance(v, Decimal) else v for k, v in values.items() if v is not None}


def budget(
    *,
    usd: str | int | float | Decimal | None = None,
    tokens: int | None = None,
    turns: int | None = None,
    agents: int | None = None,
    tool_calls: int | None = None,
    wall: Duration | None = None,
    sandbox_seconds: Duration | None = None,
) -> Budget:
    """Limits for a scope, an agent or a program: ``budget(usd=5, turns=400, wall="30m")``. Raises ``UsageError``."""
    for name, count in (("tokens", tokens), ("turns", turns), ("agents", agents), ("tool_calls", tool_calls)):
        _check_count(name, count)
    return Budget(
        usd=_money(usd),
        tokens=tokens,
        turns=turns,
        agents=agents,
        tool_calls=tool_calls,
        wall_s=duration(wall),
        sandbox_s=duration(sandbox_seconds),
    )


_parse_usd = usd


def _money(value: str | int | float | Decimal | None) -> Decimal | None:
    return None if value is None else _parse_usd(value)


def duration(value: Duration | None) -> float | None:
    """Seconds, or None for no limit."""
    return None if value is None else seconds(value)


def _check_count(name: str, count: object) -> None:
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise UsageError(f"budget({name}={count!r}): write a whole number, zero or more")
