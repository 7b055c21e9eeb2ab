"""1,000 instant agents in Capataz: a program, its agents on the real harness with a scripted model, the journal on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.contestants.talk import answer, begin, config, end
from capataz.contracts.jobs import ProgramRequest
from capataz.wiring.app import App, open_app

PROGRAMS = Path(__file__).parents[1] / "programs"


async def fan_out(app: App, agents: int) -> float:
    """Seconds from the request to the run's end."""
    request = ProgramRequest(
        program=f"{PROGRAMS / 'fan.py'}:instant_agents", input={"n": agents}, model=f"scripted:{PROGRAMS / 'instant.py'}"
    )
    started = time.perf_counter()
    run = await app.drive(await app.start_program(request))
    seconds = time.perf_counter() - started
    assert run.state == "completed" and run.result == agents, run.reason
    return seconds


async def main(given: dict[str, Any]) -> None:
    async with open_app(home=Path(given["home"])) as app:
        await fan_out(app, given["warm_up"])
        begin()
        seconds = await fan_out(app, given["agents"])
        end()
        answer(seconds=seconds)


if __name__ == "__main__":
    asyncio.run(main(config()))
