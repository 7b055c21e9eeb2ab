"""A DBOS workflow with 1,000 instant steps at once, its system database on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dbos import DBOS

from bench.contestants.talk import answer, begin, config, end


@DBOS.step()
async def agent(number: int) -> str:
    return f"done {number}"


@DBOS.workflow()
async def fan_out(agents: int) -> int:
    results = await asyncio.gather(*(agent(number) for number in range(agents)))
    return len(results)


async def timed(agents: int) -> float:
    started = time.perf_counter()
    done = await fan_out(agents)
    seconds = time.perf_counter() - started
    assert done == agents
    return seconds


async def main(given: dict[str, Any]) -> None:
    url = given["url"].replace("postgresql://", "postgresql+psycopg://")
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        await timed(given["warm_up"])
        begin()
        seconds = await timed(given["agents"])
        end()
        answer(seconds=seconds)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(config()))
