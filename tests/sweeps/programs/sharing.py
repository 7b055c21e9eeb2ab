"""A state that tasks and a child write while others follow it."""

import asyncio
from typing import ClassVar, Literal

from pydantic import BaseModel

from capataz import Transitions, fan_out, program, run, spawn, state

NOTES = 6


class Board(BaseModel):
    notes: list[str] = []
    total: int = 0
    phase: Literal["open", "closing", "closed"] = "open"
    transitions: ClassVar[Transitions] = {"phase": {"open": ["closing"], "closing": ["closed", "open"]}}


board = state("board", Board)


@program
async def helper(input: int) -> int:
    for _ in range(3):
        after = await board.update(lambda b: b.model_copy(update={"total": b.total + input}))
    return after.total


@program
async def sharing(input: str) -> dict[str, object]:
    seen: list[int] = []

    async def follow() -> None:
        async for now in board.changes():
            seen.append(len(now.notes) * 100 + now.total)
            if now.phase == "closed":
                return

    following = asyncio.create_task(follow())
    waiting = asyncio.create_task(board.until(lambda b: len(b.notes) >= NOTES))

    async def note(name: str) -> None:
        said = await run("noter", prompt=f"{input}{name}")
        await board.update(lambda b: b.model_copy(update={"notes": [*b.notes, f"{name} {said.text}"]}))

    await fan_out([f"n{n}" for n in range(NOTES)], note)
    enough = await waiting
    child = await spawn(helper, input=7)
    total = await child.result()
    await board.transition("phase", "open", "closing")
    await board.transition("phase", "closing", "closed")
    await following
    last = await board.get()
    return {"notes": sorted(last.notes), "enough": len(enough.notes), "total": total, "seen": seen, "phase": last.phase}
