"""A run with many finished effects: ``crash`` makes them and waits to be killed at the next, ``resume`` goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.contestants.talk import answer, config
from bench.worker import InstantHarness, open_bench


async def crash(given: dict[str, Any]) -> None:
    """Prints the run's id, then ``live`` when everything before the live effect is in the journal; it is killed there."""
    live = asyncio.Event()

    async def stay(name: str) -> None:
        if name == "live":
            live.set()
            await asyncio.Event().wait()

    async with open_bench(given["home"], given["url"], InstantHarness(stay)) as bench:
        run_id = await bench.start("effects.py", "many_then_live", {"n": given["effects"]})
        print(run_id, flush=True)
        driven = asyncio.create_task(bench.drive(run_id))
        await live.wait()
        # An agent begins before its request is durable, so the ends of those before it may be on their way.
        while sum(row.status == "ok" for row in await bench.journal.effects(run_id)) < given["effects"]:  # noqa: ASYNC110  no event tells of a commit
            await asyncio.sleep(0.05)
        print("live", flush=True)
        await driven


async def resume(given: dict[str, Any]) -> None:
    """Milliseconds from the claim to the live effect; the warm parent of programs is not yet started then."""
    reached: list[float] = []

    async def seen(name: str) -> None:
        assert name == "live", f"{name} was finished before the crash and ran again"
        reached.append(time.perf_counter())

    async with open_bench(given["home"], given["url"], InstantHarness(seen)) as bench:
        started = time.perf_counter()
        await bench.drive(given["run"])
        assert len(reached) == 1
        answer(first_live_ms=(reached[0] - started) * 1000, whole_ms=(time.perf_counter() - started) * 1000)


if __name__ == "__main__":
    given = config()
    asyncio.run({"crash": crash, "resume": resume}[given["phase"]](given))
