"""A loop with agents, a step, a child, spawned work and a timer in each epoch, between effects outside of it."""

import random
from pathlib import Path

from pydantic import BaseModel

from capataz import fan_out, loop, program, run, sleep, spawn, step

EPOCHS = 4


class Diary(BaseModel):
    days: list[str] = []
    chance: list[float] = []


def note(path: str, name: str) -> str:
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


@program
async def inner(input: str) -> str:
    return (await run("inner", prompt=input)).text


@program
async def looping(input: str) -> list[object]:
    before = await run("before", prompt="before")

    async def day(so_far: Diary) -> Diary:
        number = len(so_far.days)
        said = await run("writer", prompt=f"day {number}")
        await step(f"day-{number}", note, input, f"day-{number}")
        helper = await spawn("helper", prompt=f"help {number}")
        both = await fan_out(["x", "y"], lambda item: run("item", prompt=f"{item} {number}"))
        child = await run(inner, input=f"inside {number}")
        await sleep(0.001)
        text = "|".join([said.text, (await helper).text, *[b.text for b in both], child])
        return Diary(days=[*so_far.days, text], chance=[*so_far.chance, random.random()])

    written = await loop(day, Diary(), until=EPOCHS)
    after = await run("after", prompt="after")
    return [before.text, after.text, written.days, len(set(written.chance))]
