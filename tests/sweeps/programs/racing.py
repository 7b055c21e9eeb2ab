"""Races whose winner decides which way the program goes on."""

from pathlib import Path

from capataz import program, race, run, spawn, step

RACES = 6


def note(path: str, name: str) -> str:
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


@program
async def racing(input: str) -> list[str]:
    taken: list[str] = []
    for n in range(RACES):
        left = await spawn(f"left-{n}", prompt=f"left {n}")
        right = await spawn(f"right-{n}", prompt=f"right {n}")
        first = await race(left, right)
        if first.text.startswith("left"):
            after = await run(f"after-left-{n}", prompt=f"left won {n}")
            taken.append(after.text.partition(":")[0])
        else:
            name = f"after-right-{n}"
            taken.append(await step(name, note, input, name))
    return taken
