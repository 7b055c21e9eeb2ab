"""1,000 instant agents in plain Agno with its PostgreSQL session storage: one agent, a session for each run, all at once.

The agent is made once and reused, as Agno's documentation asks; its storage is the asynchronous one, on a pool of its own
default size. Agno's telemetry is off. ``store`` "sync" takes the synchronous storage instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from agno.agent import Agent
from agno.db.postgres import AsyncPostgresDb, PostgresDb
from agno.models.base import Model
from agno.models.response import ModelResponse

from bench.contestants.talk import answer, begin, config, end


class Instant(Model):
    """Answers at once."""

    def __init__(self) -> None:
        super().__init__(id="instant", name="instant", provider="bench")

    async def ainvoke(self, *_: Any, **__: Any) -> ModelResponse:
        return ModelResponse(role="assistant", content="done")

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    invoke = invoke_stream = ainvoke_stream = _parse_provider_response = _parse_provider_response_delta = _unused


async def fan_out(agent: Agent, agents: int, name: str) -> float:
    started = time.perf_counter()
    runs = await asyncio.gather(*(agent.arun(f"Say done: {i}", session_id=f"{name}-{i}") for i in range(agents)))
    seconds = time.perf_counter() - started
    assert [run.content for run in runs] == ["done"] * agents
    return seconds


async def main(given: dict[str, Any]) -> None:
    if given["store"] == "sync":
        db: Any = PostgresDb(db_url=given["url"].replace("postgresql://", "postgresql+psycopg://"))
    else:
        db = AsyncPostgresDb(db_url=given["url"].replace("postgresql://", "postgresql+psycopg_async://"))
    agent = Agent(model=Instant(), db=db, telemetry=False)
    await fan_out(agent, given["warm_up"], f"{given['name']}-warm")
    begin()
    seconds = await fan_out(agent, given["agents"], given["name"])
    end()
    answer(seconds=seconds)


if __name__ == "__main__":
    asyncio.run(main(config()))
