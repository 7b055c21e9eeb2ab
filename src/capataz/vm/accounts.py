"""Budgets: a tree of accounts along the scope path. A call reserves its worst case on the whole path before it starts
and settles after. The run has one writer, so the tree lives here and the journal keeps it (tables accounts, reservations).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from capataz.contracts.errors import BudgetExhausted
from capataz.contracts.journal import AccountLimit, AccountRecord, Reservation, Settlement, Usage

_DIMENSIONS: dict[str, Callable[[Usage], Decimal]] = {
    "usd": lambda u: u.usd,
    "tokens": lambda u: Decimal(u.input_tokens + u.output_tokens),
    "turns": lambda u: Decimal(u.turns),
    "agents": lambda u: Decimal(u.agents),
    "tool_calls": lambda u: Decimal(u.tool_calls),
    "wall_s": lambda u: Decimal(str(u.wall_s)),
    "sandbox_s": lambda u: Decimal(str(u.sandbox_s)),
}
WARN_AT = Decimal("0.8")


@dataclass
class _Account:
    limits: dict[str, Decimal]
    used: Usage = field(default_factory=Usage)
    reserved: dict[str, Usage] = field(default_factory=dict[str, Usage])
    warned: set[str] = field(default_factory=set[str])

    def over(self, want: Usage, *, with_reserved: bool) -> str | None:
        """The first dimension in which ``want`` does not fit."""
        held = sum(self.reserved.values(), Usage()) if with_reserved else Usage()
        for name, limit in self.limits.items():
            measure = _DIMENSIONS[name]
            if measure(want) and measure(self.used) + measure(held) + measure(want) > limit:
                return name
        return None


class Accounts:
    """``emit`` gets (event type, effect, data)."""

    def __init__(self, emit: Callable[[str, str | None, dict[str, Any]], None]) -> None:
        self._accounts: dict[str, _Account] = {}
        self._emit = emit
        self._freed = asyncio.Condition()

    def restore(self, records: list[AccountRecord]) -> None:
        """From the journal. Reservations of a dead worker are not taken over: their calls reserve again."""
        for record in records:
            self._accounts[record.account] = _Account(_amounts(record.limits), used=record.used + record.overrun)

    def limit(self, account: str, limits: Mapping[str, Any]) -> AccountLimit:
        """Opens an account or changes its limits (``topup``); the record is for the journal."""
        known = self._accounts.setdefault(account, _Account({}))
        known.limits.update(_amounts(limits))
        return AccountLimit(account=account, limits={k: str(v) for k, v in known.limits.items()})

    async def changed(self) -> None:
        """Waits until a limit was raised or a reservation ended."""
        async with self._freed:
            await self._freed.wait()

    async def topup(self, usd: Any) -> AccountLimit:
        """Adds money to the run's account."""
        known = self._accounts.setdefault("", _Account({}))
        record = self.limit("", {"usd": Decimal(str(known.limits.get("usd", known.used.usd))) + Decimal(str(usd))})
        async with self._freed:
            self._freed.notify_all()
        return record

    def path(self, account: str) -> tuple[str, ...]:
        """The accounts above and at ``account`` that have limits, leaf first."""
        parts = account.split("/") if account else []
        names = ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]
        return tuple(name for name in names if name in self._accounts)

    def has_money_limit(self, account: str) -> bool:
        return any("usd" in self._accounts[name].limits for name in self.path(account))

    async def reserve(self, effect: str, account: str, usage: Usage) -> Reservation:
        """Waits while only open reservations stand in the way. Raises ``BudgetExhausted`` naming the account."""
        path = self.path(account)
        async with self._freed:
            while (blocked := self._blocked(path, usage)) is not None:
                name, dimension, final = blocked
                if final:
                    self._emit("budget.exhausted", effect, {"account": name, "dimension": dimension})
                    raise self._exhausted(name, dimension)
                await self._freed.wait()
            for name in path:
                self._accounts[name].reserved[effect] = usage
        return Reservation(effect=effect, accounts=path, usage=usage)

    def _blocked(self, path: tuple[str, ...], usage: Usage) -> tuple[str, str, bool] | None:
        found: tuple[str, str, bool] | None = None
        for name in path:
            account = self._accounts[name]
            if (dimension := account.over(usage, with_reserved=False)) is not None:
                return name, dimension, True
            if found is None and (dimension := account.over(usage, with_reserved=True)) is not None:
                found = (name, dimension, False)
        return found

    def _exhausted(self, name: str, dimension: str) -> BudgetExhausted:
        account = self._accounts[name]
        used, limit = _DIMENSIONS[dimension](account.used), account.limits[dimension]
        where = f"of scope {name}" if name else "of the run"
        return BudgetExhausted(
            f"the budget {where} is used up: {dimension} {used} of {limit}, and the next call could need more than the rest",
            account=name, dimension=dimension, used=str(used), limit=str(limit),
        )

    async def settle(self, effect: str, account: str, usage: Usage) -> Settlement:
        async with self._freed:
            for name in self.path(account):
                held = self._accounts[name]
                held.reserved.pop(effect, None)
                held.used = held.used + usage
                self._warn(name, held, effect)
            self._freed.notify_all()
        return Settlement(effect=effect, usage=usage)

    async def release(self, effect: str, account: str) -> None:
        """Gives a reservation back whose call never reached a provider."""
        async with self._freed:
            for name in self.path(account):
                self._accounts[name].reserved.pop(effect, None)
            self._freed.notify_all()

    def _warn(self, name: str, account: _Account, effect: str) -> None:
        for dimension, limit in account.limits.items():
            used = _DIMENSIONS[dimension](account.used)
            if dimension not in account.warned and limit and used >= WARN_AT * limit:
                account.warned.add(dimension)
                data = {"account": name, "dimension": dimension, "used": str(used), "limit": str(limit)}
                self._emit("budget.warned", effect, data)


def _amounts(limits: Mapping[str, Any]) -> dict[str, Decimal]:
    return {k: Decimal(str(v)) for k, v in limits.items() if v is not None and k in _DIMENSIONS}
