"""Programs in programs, three deep, several at once."""

import asyncio
from pathlib import Path

from capataz import checkpoint, fan_out, program, run, scope, spawn, step


def note(path: str, name: str) -> str:
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


@program
async def leaf(input: list[str]) -> str:
    path, name = input
    said = await run("leaf", prompt=f"leaf {name}")
    return await step(f"leaf-{name}", note, path, f"leaf-{name}") + said.text


@program
async def branch(input: list[str]) -> list[str]:
    path, name = input
    async with scope("deep"):
        before = await run("before", prompt=f"before {name}")
    leaves = await fan_out(["a", "b"], lambda part: run(leaf, input=[path, name + part]))
    return [before.text, *leaves]


@program
async def nesting(input: str) -> list[object]:
    aside = await spawn(leaf, input=[input, "aside"])
    both = await asyncio.gather(*(run(branch, input=[input, f"{n}-"]) for n in range(2)))
    await checkpoint("between", {"branches": len(both)})
    last = await run(leaf, input=[input, "last"])
    return [*both, await aside.result(), last]
