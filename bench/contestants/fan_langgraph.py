"""A fan-out of 1,000 instant tasks with LangGraph's functional API and its PostgreSQL checkpointer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.func import entrypoint, task

from bench.contestants.talk import answer, begin, config, end


@task
async def agent(number: int) -> str:
    return f"done {number}"


async def main(given: dict[str, Any]) -> None:
    async with AsyncPostgresSaver.from_conn_string(given["url"]) as saver:
        await saver.setup()

        @entrypoint(checkpointer=saver)
        async def fan_out(agents: int) -> int:
            results = await asyncio.gather(*(agent(number) for number in range(agents)))
            return len(results)

        async def timed(agents: int, name: str) -> float:
            started = time.perf_counter()
            done = await fan_out.ainvoke(agents, {"configurable": {"thread_id": name}})
            seconds = time.perf_counter() - started
            assert done == agents
            return seconds

        await timed(given["warm_up"], f"{given['name']}-warm")
        begin()
        seconds = await timed(given["agents"], given["name"])
        end()
        answer(seconds=seconds)


if __name__ == "__main__":
    asyncio.run(main(config()))
