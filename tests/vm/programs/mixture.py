"""A program that uses most verbs; its result depends on the order in which things were delivered."""

import asyncio
import random
from pathlib import Path

from capataz import checkpoint, fan_out, now, program, race, run, scope, sleep, spawn, step


def note(path: str, text: str) -> int:
    with Path(path).open("a") as file:
        file.write(text + "\n")
    return len(text)


@program
async def inner(input: int) -> str:
    first = await run("inner-first", prompt=f"inner {input}")
    async with scope("deep"):
        second = await run("inner-second", prompt=first.text)
    return second.text


@program
async def mixture(input: str) -> dict[str, object]:
    """Fan-out, race, steps, children, timers."""

    async def chain(n: int) -> str:
        one = await run("one", prompt=f"one {n}")
        two = await run("two", prompt=f"two {one.text}")
        return two.text

    chains = await fan_out(list(range(4)), chain, limit=3)
    noted = await step("note", note, input, "hello")
    fast = await spawn("fast", prompt="fast")
    slow = await spawn("slow", prompt="slow")
    first = await race(fast, slow)
    await checkpoint("half-way", {"noted": noted})
    child = await run(inner, input=7)
    at = await now()
    await sleep(0.01)
    together = await asyncio.gather(run("g", prompt="1"), step("note", note, input, "again"), run("g", prompt="2"))
    return {
        "chains": chains, "noted": noted, "first": first.text, "child": child, "later": (await now()) >= at,
        "together": [str(getattr(part, "text", part)) for part in together], "chance": random.random(),
    }
