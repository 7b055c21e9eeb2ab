"""Reserving and settling what an agent's calls use, on the accounts above it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from capataz.contracts.errors import BudgetExhausted
from capataz.contracts.journal import Reservation, Settlement, Usage

if TYPE_CHECKING:
    from capataz.vm.effect import Effect
    from capataz.vm.run import Run


class Booking:
    """``account``: the one that the agent's calls are booked on. Raises ``BudgetExhausted``, or waits for a ``topup`` where the
    program says ``on_exhausted="pause"``."""

    def __init__(self, run: Run, effect: Effect, account: str) -> None:
        self._run = run
        self._effect = effect
        self.account = account

    def limited(self, dimension: str) -> bool:
        return self._run.accounts.limited(self.account, dimension)

    async def reserve(self, key: str, usage: Usage, *, at_most: bool = False) -> tuple[Reservation, ...]:
        """What the journal must hold before the call starts; () without a budget."""
        accounts = self._run.accounts
        if not accounts.path(self.account):
            return ()
        while True:
            try:
                return (await accounts.reserve(key, self.account, usage, at_most=at_most),)
            except BudgetExhausted as error:
                if self._effect.args.get("on_exhausted") != "pause":
                    raise
                wait = {"on": "budget", "account": error.details.get("account"), "dimension": error.details.get("dimension")}
                with self._run.waiting_for(wait, self._effect):
                    await accounts.changed()

    async def settle(self, key: str, usage: Usage) -> tuple[Settlement, ...]:
        return await self._run.accounts.settle(key, usage)

    async def release(self, key: str) -> None:
        await self._run.accounts.release(key)

    @asynccontextmanager
    async def within(self, key: str, *, sandbox_s: float | None = None) -> AsyncIterator[None]:
        """Ends what runs inside when the running time or the granted sandbox time is used up. Raises ``BudgetExhausted``."""
        wall = self._run.accounts.wall_left(self.account)
        limit = min((left for left in (wall, sandbox_s) if left is not None), default=None)
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            if wall is not None and wall == limit:
                raise self._run.accounts.wall_exhausted(key, self.account) from None
            raise BudgetExhausted(
                f"the budget is used up: the call had {limit:g} s of sandbox time left", account=self.account, dimension="sandbox_s"
            ) from None
