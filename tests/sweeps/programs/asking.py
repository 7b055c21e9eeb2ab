"""Questions and sleeps: the run is parked and woken between its agents."""

import asyncio
from pathlib import Path

from capataz import ask, program, run, sleep, step


def note(path: str, name: str) -> str:
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


@program
async def asking(input: str) -> list[str]:
    said: list[str] = []
    for n in range(3):
        one = await run("one", prompt=f"one {n}")
        answer = await ask(f"Question {n}?", kind="choice", options=["red", "blue"])
        await sleep(0.02)
        said += [one.text, str(answer.value)]
    both = await asyncio.gather(
        ask("Left?", kind="choice", options=["yes", "no"]), ask("Right?", kind="choice", options=["no", "yes"]), run("two", prompt="two"),
        sleep(0.001),
    )
    said += [str(both[0].value), str(both[1].value), both[2].text, await step("asked", note, input, "asked")]
    try:
        async with asyncio.timeout(0.01):
            await sleep(60)
    except TimeoutError:
        said.append("late")
    return said
