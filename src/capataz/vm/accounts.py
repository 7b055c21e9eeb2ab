"""Budgets: a tree of accounts along the scope path. A call reserves its worst case on the whole path before it starts
and settles after. The run has one writer, so the tree lives here and the journal keeps it (tables accounts, reservations).

``wall_s`` is different: it is the running time since the account was opened (waits for people not counted), so nothing is
reserved; a call that is under way when it is used up ends there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from capataz.contracts.errors import BudgetExhausted
from capataz.contracts.journal import AccountLimit, AccountRecord, Reservation, Settlement, Usage

DIMENSIONS: dict[str, Callable[[Usage], Decimal]] = {
    "usd": lambda u: u.usd,
    "tokens": lambda u: Decimal(u.input_tokens + u.output_tokens),
    "turns": lambda u: Decimal(u.turns),
    "agents": lambda u: Decimal(u.agents),
    "tool_calls": lambda u: Decimal(u.tool_calls),
    "wall_s": lambda u: Decimal(0),
    "sandbox_s": lambda u: Decimal(str(u.sandbox_s)),
}
WARN_AT = Decimal("0.8")
_RAISED = "+"          # before the name of a dimension: what was added to its limit by ``topup``
_SINCE = "since"       # when an account with a wall limit was opened


@dataclass
class _Account:
    limits: dict[str, Decimal]
    raised: dict[str, Decimal] = field(default_factory=dict[str, Decimal])
    used: Usage = field(default_factory=Usage)
    overrun: Usage = field(default_factory=Usage)
    reserved: dict[str, Usage] = field(default_factory=dict[str, Usage])
    warned: set[str] = field(default_factory=set[str])
    since: float | None = None

    def limit(self, dimension: str) -> Decimal:
        return self.limits[dimension] + self.raised.get(dimension, Decimal(0))

    def spent(self, dimension: str) -> Decimal:
        return DIMENSIONS[dimension](self.used) + DIMENSIONS[dimension](self.overrun)

    def held(self, dimension: str) -> Decimal:
        return sum((DIMENSIONS[dimension](usage) for usage in self.reserved.values()), Decimal(0))

    def over(self, want: Usage, *, with_reserved: bool) -> str | None:
        """The first dimension in which ``want`` does not fit."""
        for name in self.limits:
            wanted = DIMENSIONS[name](want)
            held = self.held(name) if with_reserved else Decimal(0)
            if wanted and self.spent(name) + held + wanted > self.limit(name):
                return name
        return None


class Accounts:
    """``emit`` gets (event type, effect, data). ``ran``: seconds that the run was running since a time (seconds since the
    epoch); ``now``: that clock."""

    def __init__(
        self,
        emit: Callable[[str, str | None, dict[str, Any]], None],
        *,
        now: Callable[[], float] = time.time,
        ran: Callable[[float], float] | None = None,
    ) -> None:
        self._accounts: dict[str, _Account] = {}
        self._open: dict[str, Reservation] = {}
        self._emit = emit
        self._now = now
        self._ran = ran or (lambda since: now() - since)
        self._freed = asyncio.Condition()

    def restore(self, records: list[AccountRecord]) -> None:
        """From the journal. Reservations of a dead worker are not taken over: their calls reserve again."""
        for record in records:
            limits: Mapping[str, Any] = record.limits or {}
            account = _Account(_amounts(limits), _raised(limits), used=record.used, overrun=record.overrun)
            account.since = limits.get(_SINCE)
            account.warned = {name for name in account.limits if account.limit(name) and account.spent(name) >= WARN_AT * account.limit(name)}
            self._accounts[record.account] = account

    def limit(self, account: str, limits: Mapping[str, Any]) -> AccountLimit:
        """Opens an account or declares its limits anew (what ``topup`` added stays); the record is for the journal."""
        known = self._accounts.setdefault(account, _Account({}))
        known.limits.update(_amounts(limits))
        if "wall_s" in known.limits and known.since is None:
            known.since = self._now()
        return self._record(account, known)

    def _record(self, name: str, account: _Account) -> AccountLimit:
        limits: dict[str, Any] = {k: str(v) for k, v in account.limits.items()}
        limits |= {_RAISED + k: str(v) for k, v in account.raised.items()}
        if account.since is not None:
            limits[_SINCE] = account.since
        return AccountLimit(account=name, limits=limits)

    async def changed(self) -> None:
        """Waits until a limit was raised or a reservation ended."""
        async with self._freed:
            await self._freed.wait()

    async def topup(self, account: str, amounts: Mapping[str, Any]) -> AccountLimit:
        """Raises the limits of an account. A dimension without a limit gets one: what is spent, and the amount."""
        known = self._accounts.setdefault(account, _Account({}))
        for name, amount in _amounts(amounts).items():
            known.limits.setdefault(name, known.spent(name))
            known.raised[name] = known.raised.get(name, Decimal(0)) + amount
            known.warned.discard(name)
        async with self._freed:
            self._freed.notify_all()
        return self._record(account, known)

    # ---- the tree ------------------------------------------------------------------------------

    def path(self, account: str) -> tuple[str, ...]:
        """The accounts above and at ``account`` that have limits, leaf first."""
        parts = account.split("/") if account else []
        names = ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]
        return tuple(name for name in names if name in self._accounts)

    def has_money_limit(self, account: str) -> bool:
        return self.limited(account, "usd")

    def limited(self, account: str, dimension: str) -> bool:
        return any(dimension in self._accounts[name].limits for name in self.path(account))

    def wall_left(self, account: str) -> float | None:
        """Seconds of running time that are left on the whole path; None: no limit."""
        rests = [self._wall_rest(self._accounts[name]) for name in self.path(account)]
        return min((rest for rest in rests if rest is not None), default=None)

    def _wall_rest(self, account: _Account) -> float | None:
        if "wall_s" not in account.limits:
            return None
        return float(account.limit("wall_s")) - (self._ran(account.since) if account.since is not None else 0.0)

    def wall_exhausted(self, effect: str, account: str) -> BudgetExhausted:
        """The error of a call for which no running time is left, with its event."""
        name = min(
            (n for n in self.path(account) if "wall_s" in self._accounts[n].limits),
            key=lambda n: self._wall_rest(self._accounts[n]) or 0.0,
        )
        self._emit("budget.exhausted", effect, {"account": name, "dimension": "wall_s"})
        limit = self._accounts[name].limit("wall_s")
        where = f"of scope {name}" if name else "of the run"
        return BudgetExhausted(
            f"the budget {where} is used up: {limit} s of running time are over", account=name, dimension="wall_s", limit=str(limit)
        )

    # ---- reserving -----------------------------------------------------------------------------

    async def reserve(self, effect: str, account: str, usage: Usage, *, at_most: bool = False) -> Reservation:
        """Waits while only open reservations stand in the way. Raises ``BudgetExhausted`` naming the account.

        ``at_most``: ``sandbox_s`` is the most that is wanted; what is granted is what is left, when that is less."""
        path = self.path(account)
        rest = self.wall_left(account)
        if rest is not None and rest <= 0:
            raise self.wall_exhausted(effect, account)
        async with self._freed:
            while True:
                want = self._granted(path, usage) if at_most else usage
                blocked = self._blocked(path, want)
                if blocked is None:
                    break
                name, dimension, final = blocked
                if final:
                    self._emit("budget.exhausted", effect, {"account": name, "dimension": dimension})
                    raise self._exhausted(name, dimension)
                await self._freed.wait()
            for name in path:
                self._accounts[name].reserved[effect] = want
            self._open[effect] = Reservation(effect=effect, accounts=path, usage=want)
        return self._open[effect]

    def _granted(self, path: tuple[str, ...], usage: Usage) -> Usage:
        limited = [self._accounts[name] for name in path if "sandbox_s" in self._accounts[name].limits]
        rests = [account.limit("sandbox_s") - account.spent("sandbox_s") - account.held("sandbox_s") for account in limited]
        rest = min(rests, default=None)
        if rest is None or rest <= 0 or rest >= Decimal(str(usage.sandbox_s)):
            return usage                       # enough, or nothing: then the whole of it says whether to wait or to fail
        return replace(usage, sandbox_s=float(rest))

    def _blocked(self, path: tuple[str, ...], usage: Usage) -> tuple[str, str, bool] | None:
        found: tuple[str, str, bool] | None = None
        for name in path:
            account = self._accounts[name]
            dimension = account.over(usage, with_reserved=False)
            granted_less = dimension == "sandbox_s" and account.spent(dimension) < account.limit(dimension)
            if dimension is not None and not granted_less:
                return name, dimension, True
            if found is None and (dimension := account.over(usage, with_reserved=True)) is not None:
                found = (name, dimension, False)
        return found

    def _exhausted(self, name: str, dimension: str) -> BudgetExhausted:
        account = self._accounts[name]
        used, limit = account.spent(dimension), account.limit(dimension)
        where = f"of scope {name}" if name else "of the run"
        return BudgetExhausted(
            f"the budget {where} is used up: {dimension} {used} of {limit}, and the next call could need more than the rest",
            account=name, dimension=dimension, used=str(used), limit=str(limit),
        )

    # ---- settling ------------------------------------------------------------------------------

    async def settle(self, effect: str, usage: Usage) -> tuple[Settlement, ...]:
        """Ends a reservation with what was really used: up to the reserve, the rest is an overrun. () when there is none."""
        async with self._freed:
            reservation = self._open.pop(effect, None)
            if reservation is None:
                return ()
            kept, over = _split(usage, reservation.usage)
            for name in reservation.accounts:
                account = self._accounts[name]
                account.reserved.pop(effect, None)
                account.used, account.overrun = account.used + kept, account.overrun + over
                self._warn(name, account, effect)
            self._freed.notify_all()
        return (Settlement(effect=effect, usage=usage),)

    async def release(self, effect: str) -> None:
        """Gives a reservation back whose call never reached a provider."""
        async with self._freed:
            reservation = self._open.pop(effect, None)
            for name in reservation.accounts if reservation is not None else ():
                self._accounts[name].reserved.pop(effect, None)
            self._freed.notify_all()

    def _warn(self, name: str, account: _Account, effect: str) -> None:
        for dimension in account.limits:
            limit, used = account.limit(dimension), account.spent(dimension)
            if dimension not in account.warned and limit and used >= WARN_AT * limit:
                account.warned.add(dimension)
                data = {"account": name, "dimension": dimension, "used": str(used), "limit": str(limit)}
                self._emit("budget.warned", effect, data)


def _split(used: Usage, reserved: Usage) -> tuple[Usage, Usage]:
    """What fits into the reserve, and the excess, of what is reserved by amount: as the journal splits it."""
    over = {name: max(getattr(used, name) - getattr(reserved, name), 0) for name in ("usd", "input_tokens", "output_tokens")}
    return replace(used, **{name: getattr(used, name) - excess for name, excess in over.items()}), Usage(**over)


def _amounts(limits: Mapping[str, Any]) -> dict[str, Decimal]:
    return {k: Decimal(str(v)) for k, v in limits.items() if v is not None and k in DIMENSIONS}


def _raised(limits: Mapping[str, Any]) -> dict[str, Decimal]:
    return {k[1:]: Decimal(str(v)) for k, v in limits.items() if k.startswith(_RAISED)}
