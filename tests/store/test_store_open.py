"""Opening a store: fast, or one clear line."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from capataz.contracts.errors import StoreUnavailable
from capataz.store import urls
from capataz.store.connection import Database, Source
from capataz.store.embedded.launcher import ensure_server
from capataz.store.store import Store, open_store
from capataz.testing.journal_conformance import new_run

BAD = {
    "mysql://me:hunter2@host/db": "is no PostgreSQL URL; write CAPATAZ_DATABASE_URL as",
    "postgresql://me:hunter2@[bad/db": "is no PostgreSQL URL",
    "nonsense": "is no PostgreSQL URL",
    "postgresql://me:hunter2@127.0.0.1:1/db": "Connection refused",
    "postgresql://me:hunter2@no.such.host.invalid/db": "cannot reach PostgreSQL at no.such.host.invalid",
    "postgresql://me:hunter2@/db?host=/nowhere": "cannot reach PostgreSQL at /nowhere",
    "host=127.0.0.1 port=1 password=hunter2 dbname=db": "cannot reach PostgreSQL at 127.0.0.1:1/db",
}


@pytest.mark.parametrize("url", BAD)
async def test_a_url_that_does_not_work_is_one_line_without_the_password(tmp_path: Path, url: str) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        await open_store(tmp_path, url)
    said = str(caught.value)
    assert BAD[url] in said and "\n" not in said and "hunter2" not in said
    assert time.monotonic() - began < 15, "no half minute of retries for a mistake"


async def test_a_server_that_refuses_is_quoted_with_its_message_not_with_its_context(store: Store) -> None:
    for statement in ("SELECT 1 FROM no_such_table", "DO $$ BEGIN RAISE EXCEPTION 'no_such_table'; END $$"):
        with pytest.raises(StoreUnavailable, match=r"refuses: .*no_such_table"):
            await store.database.run(lambda connection, sql=statement: connection.execute(sql))


def test_passwords_are_masked() -> None:
    assert urls.masked("see postgresql://u:p%40ss@h/d and password='a b' PASSWORD=x") == "see postgresql://u:***@h/d and password=*** PASSWORD=***"


async def test_an_older_server_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capataz.store.connection.OLDEST_SERVER", 990_000)
    with pytest.raises(StoreUnavailable, match="is 18; Capataz needs 15 or newer"):
        await open_store(home, ensure_server(home).url)


async def test_by_url_and_embedded_are_one_store(home: Path, store: Store) -> None:
    await store.journal.create_run(new_run("by-url"))
    other = await open_store(home / "unused", ensure_server(home).url)
    assert (await other.journal.get_run("by-url")).run_id == "by-url"
    await other.close()
    assert not (home / "unused").exists()


async def test_a_second_open_is_fast(home: Path, store: Store) -> None:
    took: list[float] = []
    for _ in range(7):
        began = time.perf_counter()
        await (await open_store(home)).close()
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.06 or min(took) < 0.03


async def test_lost_connections_are_replaced(store: Store) -> None:
    async with store.database.connection() as connection:
        victim = connection.info.backend_pid
    os.kill(victim, signal.SIGTERM)
    assert await store.journal.list_runs() == []


async def test_a_cancelled_statement_leaves_a_clean_pool(store: Store) -> None:
    async def sleep() -> None:
        async with store.database.connection() as connection:
            await connection.execute("SELECT pg_sleep(60)")

    for _ in range(6):                         # more than the pool has
        task = asyncio.create_task(sleep())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await store.journal.list_runs() == []


async def test_an_unreachable_server_ends_in_an_error_after_a_bounded_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capataz.store.connection.RETRY_S", 0.3)
    database = Database(Source(home, "postgresql://u:hunter2@127.0.0.1:1/d"))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot reach"):
        await database.run(lambda connection: connection.execute("SELECT 1"))
    assert time.monotonic() - began < 5


async def test_a_closed_store_says_so(home: Path) -> None:
    store = await open_store(home)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.journal.list_runs()


async def test_the_listener_comes_back_after_its_connection_was_killed(store: Store) -> None:
    await store.journal.create_run(new_run())
    heard = aiter(store.journal.listen())
    await _until_heard(store, heard)
    async with store.database.connection() as connection:
        killed = await (await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")).fetchall()
    assert killed
    await _until_heard(store, heard)


async def _until_heard(store: Store, heard: object) -> None:
    news = asyncio.ensure_future(anext(heard))  # type: ignore[call-overload]
    for _ in range(200):
        await store.journal.post("r1", "message", None, target=None, sender="ana", at=1.0)
        if (await asyncio.wait({news}, timeout=0.05))[0]:
            return
    raise AssertionError("nothing heard")
