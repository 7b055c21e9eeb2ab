"""A program whose agent has tools of the program, and the script that calls them."""

from __future__ import annotations

import os
from pathlib import Path

from capataz import program, run, tool

LOG = Path(__file__).with_name("calls.log")


def noted(line: str) -> None:
    with LOG.open("a") as log:
        log.write(f"{line} {os.environ['CAPATAZ_CALL_KEY']}\n")


@tool(approval="always")
def deploy(environment: str, version: int = 1) -> dict[str, str]:
    """Deploys a version to an environment."""
    noted(f"deploy {environment} {version}")
    return {"deployed": environment}


@tool(approval=lambda arguments: arguments["dollars"] > 100)
async def pay(dollars: int) -> str:
    """Pays an invoice."""
    noted(f"pay {dollars}")
    return "paid"


@tool(idempotent=False)
def send(text: str) -> str:
    """Sends a letter."""
    noted(f"send {text}")
    if text == "bad":
        raise ValueError("no\nstamp")
    return "sent"


@tool(timeout=0.2)
async def hang() -> None:
    """Never ends."""
    import asyncio

    await asyncio.Event().wait()


@program
async def ship(order: str) -> str:
    """Lets an agent ship."""
    return (await run("shipper", prompt=order, type="reason", tools=[deploy, pay, send, hang, "ask_human"])).text
