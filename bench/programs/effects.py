"""Programs that are nothing but effects."""

from pydantic import BaseModel

from capataz import fan_out, now, program, run, step


class Size(BaseModel):
    n: int


async def one(number: int) -> str:
    result = await run("agent", prompt=f"Say done: {number}", type="reason")
    return result.text


def nothing(number: int) -> int:
    return number


@program
async def agents(input: Size) -> None:
    """Agents one after the other."""
    for number in range(input.n):
        await one(number)


@program
async def clock(input: Size) -> None:
    """Readings of the recorded time, one after the other."""
    for _ in range(input.n):
        await now()


@program
async def steps(input: Size) -> None:
    """Steps one after the other."""
    for number in range(input.n):
        await step("nothing", nothing, number)


@program
async def fan(input: Size) -> None:
    """Agents all at once."""
    await fan_out(range(input.n), one)


@program
async def many_then_live(input: Size) -> str:
    """Agents by the hundred, then one of its own name."""
    for block in range(0, input.n, 100):
        await fan_out(range(block, min(block + 100, input.n)), one)
    result = await run("live", prompt="Say done", type="reason")
    return result.text
