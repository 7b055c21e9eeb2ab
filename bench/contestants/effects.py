"""Journaled effects and raw durable commits on the same server, in turns.

An effect is what a run with it takes longer than a run without: what starting and ending a run cost is told apart (``empty``).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from bench.contestants.talk import answer, config
from bench.worker import Bench, InstantHarness, open_bench

ROW = "x" * 200


class Commits:
    """Single-row inserts, each a transaction of its own, prepared, on an open connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def prepare(self) -> None:
        setting = await (await self._connection.execute("SHOW synchronous_commit")).fetchone()
        assert setting == ("on",), setting
        await self._connection.execute("CREATE TABLE IF NOT EXISTS raw_rows (id bigserial PRIMARY KEY, text text NOT NULL)")

    async def measure(self, count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            await self._connection.execute("INSERT INTO raw_rows (text) VALUES (%s)", (ROW,), prepare=True)
        return (time.perf_counter() - started) / count * 1000


async def whole_run(bench: Bench, name: str, count: int) -> float:
    """Milliseconds of a run of ``count`` effects."""
    run_id = await bench.start("effects.py", name, {"n": count})
    started = time.perf_counter()
    await bench.drive(run_id)
    return (time.perf_counter() - started) * 1000


async def main(given: dict[str, Any]) -> None:
    """``counts``: effects of a run, by program. Each repetition of a program stands between two of raw commits."""
    figures: dict[str, list[tuple[float, float]]] = {}
    async with (
        open_bench(given["home"], given["url"], InstantHarness()) as bench,
        await psycopg.AsyncConnection.connect(given["url"], autocommit=True) as connection,
    ):
        commits = Commits(connection)
        await commits.prepare()
        await commits.measure(50)
        for name in given["counts"]:
            await whole_run(bench, name, 20)
        for _ in range(given["repetitions"]):
            for name, count in given["counts"].items():
                before = await commits.measure(given["commits"])
                empty = await whole_run(bench, name, 0)
                ours = (await whole_run(bench, name, count) - empty) / count
                after = await commits.measure(given["commits"])
                figures.setdefault(name, []).append((ours, (before + after) / 2))
                figures.setdefault("empty", []).append((empty, (before + after) / 2))
    answer(**figures)


if __name__ == "__main__":
    asyncio.run(main(config()))
