import subprocess

from agno.agent import Agent
from agno.tools import tool

from capataz import program, run


def deploy(environment: str, version: str) -> str:
    subprocess.run(["./deploy.sh", environment, version], check=True)
    return f"{version} runs in {environment}"


@tool
def deploy_to_staging(version: str) -> str:
    """Deploys a version to staging."""
    return deploy("staging", version)


@tool(requires_confirmation=True)
def deploy_to_production(version: str) -> str:
    """Deploys a version to production."""
    return deploy("production", version)


coordinator = Agent(
    name="coordinator",
    instructions=["Deploy to staging, then to production.", "When a person declines, stop and say so."],
    tools=[deploy_to_staging, deploy_to_production],
)


@program
async def release(version: str) -> str:
    """Releases a version by an Agno agent."""
    return (await run("coordinator", prompt=f"Release version {version}.", agent=coordinator)).text
