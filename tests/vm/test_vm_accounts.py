"""Laws of the budget tree: never negative under any interleaving, and a call waits only for open reservations."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capataz.contracts.errors import BudgetExhausted
from capataz.contracts.journal import AccountRecord, Usage
from capataz.vm.accounts import DIMENSIONS, Accounts

SCOPES = ["", "a", "b", "a/x", "a/y", "b/x"]
DIMS = ["usd", "tokens", "turns", "agents", "tool_calls"]


def usage(n: int) -> Usage:
    return Usage(usd=Decimal(n) / 10, input_tokens=n, output_tokens=n // 2, turns=n % 2, agents=n % 3 == 0, tool_calls=n % 2)


class Checked:
    """Accounts that look at their own law after each move."""

    def __init__(self, limits: dict[str, dict[str, int]]) -> None:
        self.accounts = Accounts(lambda *_: None)
        self.limits = limits
        for name, amounts in limits.items():
            self.accounts.limit(name, amounts)

    def check(self) -> None:
        for name, amounts in self.limits.items():
            account = self.accounts._accounts[name]  # pyright: ignore[reportPrivateUsage]
            for dimension in amounts:
                reserved = sum((DIMENSIONS[dimension](u) for u in account.reserved.values()), Decimal(0))
                used = DIMENSIONS[dimension](account.used)
                assert used + reserved <= account.limit(dimension), (name, dimension)

    def open(self) -> int:
        return len(self.accounts._open)  # pyright: ignore[reportPrivateUsage]


@settings(max_examples=150, deadline=None)
@given(
    limits=st.dictionaries(st.sampled_from(SCOPES), st.dictionaries(st.sampled_from(DIMS), st.integers(0, 40), min_size=1), min_size=1),
    calls=st.lists(st.tuples(st.sampled_from(SCOPES), st.integers(0, 12), st.integers(0, 15), st.booleans()), max_size=25),
    seed=st.integers(0, 2**32),
)
def test_no_balance_is_ever_negative(limits: Any, calls: Any, seed: int) -> None:
    asyncio.run(_law(limits, calls, seed))


async def _law(limits: dict[str, dict[str, int]], calls: list[tuple[str, int, int, bool]], seed: int) -> None:
    checked, chance = Checked(limits), random.Random(seed)

    async def call(number: int, scope: str, worst: int, really: int, fails: bool) -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        key = f"call-{number}"
        try:
            await checked.accounts.reserve(key, scope, usage(worst))
        except BudgetExhausted as error:
            account = checked.accounts._accounts[error.details["account"]]  # pyright: ignore[reportPrivateUsage]
            dimension = error.details["dimension"]
            assert account.spent(dimension) + DIMENSIONS[dimension](usage(worst)) > account.limit(dimension), "refused without need"
            return
        checked.check()
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        used = replace(usage(worst), usd=usage(really).usd, input_tokens=really, output_tokens=really // 2)  # calls are counted exactly
        await (checked.accounts.release(key) if fails else checked.accounts.settle(key, used))
        checked.check()

    await asyncio.wait_for(asyncio.gather(*(call(n, *given) for n, given in enumerate(calls))), 20)
    assert checked.open() == 0


async def test_a_call_waits_while_only_reservations_stand_in_its_way() -> None:
    checked = Checked({"": {"usd": 1}})
    await checked.accounts.reserve("one", "a", usage(8))
    waiting = asyncio.create_task(checked.accounts.reserve("two", "a", usage(5)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await checked.accounts.settle("one", usage(3))
    await asyncio.wait_for(waiting, 1)


async def test_an_overrun_is_kept_apart_and_counts_as_spent() -> None:
    checked = Checked({"": {"usd": 1}})
    await checked.accounts.reserve("one", "", usage(8))
    await checked.accounts.settle("one", usage(14))
    checked.check()
    account = checked.accounts._accounts[""]  # pyright: ignore[reportPrivateUsage]
    assert (account.used.usd, account.overrun.usd) == (Decimal("0.8"), Decimal("0.6"))
    with pytest.raises(BudgetExhausted):
        await checked.accounts.reserve("two", "", usage(1))


async def test_a_topup_stays_when_the_limit_is_declared_again() -> None:
    accounts = Accounts(lambda *_: None)
    accounts.limit("a", {"usd": 1})
    record = await accounts.topup("a", {"usd": "0.50"})
    again = Accounts(lambda *_: None)
    again.restore([AccountRecord(account="a", limits=record.limits, used=Usage(), reserved=Usage(), overrun=Usage())])
    again.limit("a", {"usd": 1})
    await again.reserve("one", "a", usage(15))
    with pytest.raises(BudgetExhausted, match=r"1\.50?"):
        await again.reserve("two", "a", usage(20))


async def test_the_rest_of_the_sandbox_time_is_what_a_call_gets() -> None:
    accounts = Accounts(lambda *_: None)
    accounts.limit("", {"sandbox_s": 10})
    got = await accounts.reserve("one", "", Usage(tool_calls=1, sandbox_s=600), at_most=True)
    assert got.usage.sandbox_s == 10
    waiting = asyncio.create_task(accounts.reserve("two", "", Usage(sandbox_s=600), at_most=True))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await accounts.settle("one", Usage(tool_calls=1, sandbox_s=4))
    assert (await asyncio.wait_for(waiting, 1)).usage.sandbox_s == 6
    await accounts.settle("two", Usage(sandbox_s=6))
    with pytest.raises(BudgetExhausted, match="sandbox_s"):
        await accounts.reserve("three", "", Usage(sandbox_s=1), at_most=True)


async def test_running_time_is_used_up_without_any_call() -> None:
    clock = [100.0]
    accounts = Accounts(lambda *_: None, now=lambda: clock[0])
    accounts.limit("a", {"wall_s": 30})
    assert accounts.wall_left("a/b") == 30 and accounts.wall_left("b") is None
    clock[0] = 131.0
    with pytest.raises(BudgetExhausted, match="running time"):
        await accounts.reserve("one", "a/b", Usage(turns=1))
