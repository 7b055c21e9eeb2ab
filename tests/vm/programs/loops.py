"""A loop with agents, a step, a child, spawned work and a timer in each epoch, between effects outside of it."""

import asyncio
import random
from pathlib import Path

from pydantic import BaseModel

from capataz import checkpoint, fan_out, loop, program, race, run, sleep, spawn, state, step


class Diary(BaseModel):
    days: list[str] = []
    chance: list[float] = []


def note(path: str, text: str) -> int:
    with Path(path).open("a") as file:
        file.write(text + "\n")
    return len(text)


@program
async def inner(input: str) -> str:
    return (await run("inner", prompt=input)).text


@program
async def diary(input: str) -> dict[str, object]:
    """Four epochs."""
    before = await run("before", prompt="before")

    async def day(so_far: Diary) -> Diary:
        number = len(so_far.days)
        said = await run("writer", prompt=f"day {number}")
        again = await run("writer", prompt="again")
        await step("note", note, input, f"{number} {again.text}")
        helper = await spawn("helper", prompt="help")
        both = await fan_out(["x", "y"], lambda item: run("item", prompt=item))
        await spawn("idler", prompt="idle", daemon=True)
        asyncio.get_running_loop().call_later(3600, print)
        child = await run(inner, input="inside")
        await sleep(0.001)
        text = "|".join([said.text, (await helper).text, *[b.text for b in both], child])
        return Diary(days=[*so_far.days, text], chance=[*so_far.chance, random.random()])

    written = await loop(day, Diary(), until=4)
    await checkpoint("after", {"days": len(written.days)})
    after = await run("after", prompt="after")
    return {"before": before.text, "after": after.text, "days": written.days, "chance": written.chance}


@program
async def nested() -> list[int]:
    """A loop in a loop, beside another one."""

    async def inner(n: int) -> int:
        return n + len((await run("inner", prompt=f"{n}")).text)

    async def outer(sums: list[int]) -> list[int]:
        return [*sums, await loop(inner, len(sums), until=3)]

    async def other(n: int) -> int:
        await run("other", prompt=f"other {n}")
        return n + 1

    sums, others = await asyncio.gather(loop(outer, [], until=3), loop(other, 0, until=5))
    return [*sums, others]


class Tally(BaseModel):
    epochs: list[int] = []


tally = state("tally", Tally)


@program
async def counting(input: int) -> int:
    """A loop in a child that writes a state in each epoch."""

    async def body(n: int) -> int:
        await run("counter", prompt=f"count {n}")
        await tally.update(lambda t: Tally(epochs=[*t.epochs, n]))
        return n + 1

    return await loop(body, 0, until=input)


@program
async def hurried() -> dict[str, object]:
    """Loops that are left half-way, by a cancellation and by a race, beside a child with a loop of its own."""
    beats = 0

    async def beat(n: int) -> int:
        nonlocal beats
        await run("beat", prompt=f"beat {n}")
        await sleep(0.001)
        beats = n + 1
        return n + 1

    child = await spawn(counting, input=3)
    beating = asyncio.create_task(loop(beat, 0))
    first = await run("first", prompt="first")
    second = await race(loop(beat, 100), run("second", prompt="second"))
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    third = await run("third", prompt="third")
    counted = await child.result()
    said = [first.text, str(second), third.text]
    return {"said": said, "counted": counted, "tally": (await tally.get()).epochs, "last": await loop(beat, 0, until=2)}
