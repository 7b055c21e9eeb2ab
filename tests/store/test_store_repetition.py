"""Each statement of the journal repeated, as after a commit whose answer was lost: same result, no extra row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import pytest

from capataz.contracts.journal import Batch, Journal
from capataz.store.connection import Connection, Database
from capataz.store.journal import PgJournal
from capataz.store.store import Store
from capataz.testing.journal_conformance import ALICE, CASES, LONG, Case, completed, event, new_run, requested

T = TypeVar("T")


class Repeating(Database):
    """Does all work twice, and tells the second answer."""

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        await super().run(work)
        return await super().run(work)


class Breaking(Database):
    """Loses the connection after the work of every second call was done."""

    calls = 0

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        self.calls += 1
        broken = self.calls % 2 == 0

        async def twice(connection: Connection) -> T:
            nonlocal broken
            done = await work(connection)
            if broken:
                broken = False
                await connection.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return done

        return await super().run(twice)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.__name__) for case in CASES])
async def test_every_statement_bears_repetition(store: Store, case: Case) -> None:
    async def factory() -> Journal:
        return PgJournal(Repeating(store.database.source))

    await case(factory)


async def test_a_connection_that_breaks_during_commit_loses_and_doubles_nothing(store: Store) -> None:
    journal = PgJournal(Breaking(store.database.source))
    await journal.create_run(new_run())
    lease = await journal.claim("r1", ALICE, ttl_s=LONG)
    assert lease is not None
    for n in range(6):
        await journal.commit(lease, Batch(requested=(requested(f"k{n}", n),), completed=(completed(f"k{n}", n),), events=(event(n + 1),)))
    posted = [await journal.post("r1", "message", n, target=None, sender="ana", at=1.0) for n in range(4)]
    assert [item.body for item in await journal.inbox("r1")] == [0, 1, 2, 3]
    assert posted == [1, 2, 3, 4]
    assert len(await journal.effects("r1")) == len(await journal.events("r1")) == 6
    await journal.close()
