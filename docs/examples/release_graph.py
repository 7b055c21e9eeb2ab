import subprocess
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from capataz import program, run


class Release(TypedDict, total=False):
    version: str
    deployed: list[str]
    decision: str


def staging(release: Release) -> Release:
    subprocess.run(["./deploy.sh", "staging", release["version"]], check=True)
    return {"deployed": ["staging"]}


def approval(release: Release) -> Release:
    question = f"Deploy {release['version']} to production?"
    return {"decision": interrupt({"question": question, "options": ["approve", "decline"]})}


def production(release: Release) -> Release:
    subprocess.run(["./deploy.sh", "production", release["version"]], check=True)
    return {"deployed": [*release["deployed"], "production"]}


def decided(release: Release) -> str:
    return "production" if release["decision"] == "approve" else END


builder = StateGraph(Release)
builder.add_node("staging", staging)
builder.add_node("approval", approval)
builder.add_node("production", production)
builder.add_edge(START, "staging")
builder.add_edge("staging", "approval")
builder.add_conditional_edges("approval", decided, ["production", END])
coordinator = builder.compile()


class Released(BaseModel):
    deployed: list[str]


@program
async def release(version: str) -> Released:
    """Releases a version by a LangGraph graph."""
    return await run("coordinator", prompt="Release.", data={"version": version}, agent=coordinator, output=Released)
