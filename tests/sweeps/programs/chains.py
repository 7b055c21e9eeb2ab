"""A fan-out of chains with steps between their agents."""

from pathlib import Path

from capataz import fan_out, program, run, step

CHAINS = 20


def note(path: str, name: str) -> str:
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


@program
async def chains(input: str) -> list[str]:
    async def chain(n: int) -> str:
        first = await run("first", prompt=f"first {n}")
        noted = await step(f"note-{n}", note, input, f"note-{n}") if n % 4 == 0 else ""
        second = await run("second", prompt=f"second {n} {first.text}{noted}")
        return second.text

    return await fan_out(range(CHAINS), chain, limit=6)
