"""A program whose agent uses an MCP server, given as JSON by the environment of the test."""

import json

from pydantic import BaseModel

from capataz import mcp_server, program, run


class Job(BaseModel):
    calls: str
    tools: list[str]
    command: list[str] | None = None
    url: str | None = None
    env: dict[str, str] = {}
    read_only: list[str] = []
    approval: str = "never"
    token_env: str | None = None


@program
async def use(job: Job) -> str:
    """Lets an agent use a server."""
    given = job.model_dump(exclude={"calls"})
    server = mcp_server("notes", **given)
    assert json.loads(job.calls)
    return (await run("user", prompt=job.calls, type="reason", mcp=[server])).text
