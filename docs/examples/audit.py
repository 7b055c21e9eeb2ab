from pathlib import Path

from pydantic import BaseModel

from capataz import budget, fan_out, program, run, scope, step


class Audit(BaseModel):
    files: list[str]


class Finding(BaseModel):
    file: str
    severity: int
    text: str


def read(path: str) -> str:
    return Path(path).read_text("utf-8")


@program
async def audit(input: Audit) -> list[Finding]:
    """Reads files and lets an agent judge each."""

    async def one(path: str) -> Finding:
        text = await step("read", read, path)
        return await run("judge", prompt=f"Find the worst mistake in {path}.", data={"text": text}, type="reason", output=Finding)

    async with scope("audit", budget=budget(usd=1, turns=40), within="10m"):
        return await fan_out(input.files, one, limit=4, key=str)
