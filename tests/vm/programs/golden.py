"""Programs whose journals are kept (tests/golden): what they ask for must never change its meaning."""

import asyncio
import datetime
import random
import uuid

from pydantic import BaseModel

from capataz import budget, checkpoint, fan_out, now, program, race, run, scope, sleep, spawn, step


class Verdict(BaseModel):
    risk: str
    why: str = "none"


def double(n: int) -> int:
    return 2 * n


@program
async def fan(input: int) -> list[str]:
    async def one(n: int) -> str:
        first = await run("first", prompt=f"first {n} {random.random()}")
        return (await run("second", prompt=first.text, data={"n": n})).text

    return await fan_out(list(range(input)), one, limit=2, key=str)


@program
async def decided(input: None) -> dict[str, object]:
    quick, slow = await spawn("quick", prompt="q"), await spawn("slow", prompt="s")
    first = await race(quick, slow)
    try:
        async with asyncio.timeout(0.02):
            await sleep(5)
    except TimeoutError:
        late = True
    else:
        late = False
    return {"first": first.text, "late": late, "id": str(uuid.uuid4()), "at": datetime.datetime.now(datetime.UTC).isoformat(), "now": (await now()).isoformat()}


@program
async def inner(input: int) -> int:
    async with scope("deep", budget=budget(turns=5)):
        verdict = await run("judge", prompt=str(input), output=Verdict)
    return await step("double", double, len(verdict.risk) + input)


@program
async def nested(input: int) -> list[int]:
    await checkpoint("begin", {"input": input})
    parts = await asyncio.gather(run(inner, input=input), run(inner, input=input + 1), step("plain", double, input))
    return list(parts)
