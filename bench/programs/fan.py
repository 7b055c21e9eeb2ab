"""Programs that fan out."""

from pydantic import BaseModel

from capataz import fan_out, program, run


class Size(BaseModel):
    n: int


async def one(number: int) -> str:
    result = await run("agent", prompt=f"Say done: {number}", type="reason")
    return result.text


@program
async def instant_agents(input: Size) -> int:
    """As many agents as asked for, all at once."""
    results = await fan_out(range(input.n), one)
    return len([text for text in results if text == "done"])
