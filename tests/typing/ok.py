"""What the type checkers must accept, with the types that they must see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, ClassVar, assert_type

from pydantic import BaseModel

from capataz import (
    AgentResult,
    Answer,
    Failure,
    Handle,
    Message,
    State,
    Transitions,
    artifact,
    ask,
    budget,
    checkpoint,
    coding,
    fan_out,
    load,
    loop,
    messages,
    migrate,
    now,
    program,
    race,
    receive,
    run,
    scope,
    sleep,
    spawn,
    state,
    step,
    tell,
)
from capataz.contracts.coding import CodingJob, PlanVerdict
from capataz.contracts.records import WorkflowPlan


class Verdict(BaseModel):
    risk: str


class Job(BaseModel):
    files: list[str]


class Ticket(BaseModel):
    status: str = "open"
    hours: int = 0
    transitions: ClassVar[Transitions] = {"status": {"open": ["done"]}}

    def complete(self) -> bool | str:
        return self.status == "done" or "not done"

    @migrate
    @classmethod
    def upgrade(cls, value: Any, version: int) -> Any:
        return value


ticket = state("ticket", Ticket, reach="project", version=2)


@program
async def child(input: Job) -> Verdict:
    """A child."""
    return Verdict(risk=str(len(input.files)))


@program(budget=budget(usd=5, wall="30m"))
async def alone() -> int:
    """Takes nothing."""
    return 1


def read(path: str, size: int) -> bytes:
    return b""


async def fetch(url: str) -> dict[str, str]:
    return {}


def no_issue(verdict: Verdict) -> str | None:
    return None


@program
async def everything(input: Job) -> list[Verdict]:
    """Uses every verb."""
    assert_type(await run("judge", prompt="Judge", output=Verdict), Verdict)
    assert_type(await run(prompt="Judge", output=list[str]), list[str])
    assert_type(await run("judge", prompt="Judge", type="read", data=input, within="5m", max_turns=3), AgentResult)
    assert_type(await run("judge", prompt="Judge", output=Verdict, accept=no_issue, budget=budget(tokens=10)), Verdict)
    assert_type(await run(child, input=Job(files=[])), Verdict)
    assert_type(await run(alone), int)
    assert_type(await run(load("other.py:main"), input={"a": 1}), Any)
    assert_type(await child(input), Verdict)
    assert_type(await alone(), int)

    handle = await spawn("worker", prompt="Work", output=Verdict, daemon=True)
    assert_type(handle, Handle[Verdict])
    assert_type(await handle, Verdict)
    assert_type(await handle.result(), Verdict)
    assert_type(await spawn("worker", prompt="Work"), Handle[AgentResult])
    assert_type(await spawn(child, input=input, within=timedelta(hours=1)), Handle[Verdict])
    assert_type(await spawn(alone), Handle[int])
    await handle.notify("Parser first")
    await handle.pause()
    await handle.resume()
    await handle.cancel("not needed")
    assert_type(await handle.status(), str)

    async def one(path: str) -> Verdict:
        return await run("judge", prompt=path, output=Verdict)

    assert_type(await fan_out(input.files, one, limit=4, key=str), list[Verdict])
    assert_type(await fan_out(input.files, one, on_error="collect"), list[Verdict | Failure])
    assert_type(await fan_out([input], child), list[Verdict])
    assert_type(await race(handle, one("a")), Verdict)

    async with scope("round-0", budget=budget(usd="2.50", turns=10), within=30) as region:
        assert_type(region, scope)
    with scope("plain"):
        pass

    assert_type(await step("read", read, "a", 3), bytes)
    assert_type(await step("fetch", fetch, "https://example.org", idempotent=False, timeout="10s"), dict[str, str])
    assert_type(await ask("Deploy?"), Answer[str])
    assert_type(await ask("Which?", kind="choice", options=["a", "b"], within="2d", default="a"), Answer[str])
    answer = await ask("What?", kind=Verdict, approvers=["ana"])
    assert_type(answer, Answer[Verdict])
    assert_type(answer.value.risk, str)
    assert_type(answer.at, datetime)
    assert_type(await now(), datetime)
    assert_type(await artifact("report.md", "# Report", "text/markdown"), str)
    assert_type(await receive(Verdict, within=60), Verdict)
    assert_type(await messages(), list[Message[Any]])
    await tell("ana", "Done", severity="page")
    await checkpoint("Half way", {"done": 1})
    await sleep(timedelta(minutes=1))
    await asyncio.sleep(1)
    return [await run("judge", prompt="Judge", output=Verdict)]


@program
async def keeper(input: Job) -> Ticket:
    """Uses states and a loop."""
    assert_type(ticket, State[Ticket])
    assert_type(await ticket.get(), Ticket)
    await ticket.set(Ticket())
    assert_type(await ticket.update(lambda t: t.model_copy(update={"hours": t.hours + 1})), Ticket)
    assert_type(await ticket.transition("status", "open", "done"), Ticket)
    assert_type(await ticket.until(lambda t: t.hours > 3), Ticket)
    assert_type(ticket.changes(), AsyncIterator[Ticket])
    async for value in ticket.changes():
        assert_type(value, Ticket)
        break
    assert_type(await run("judge", prompt="x", output=Verdict, reads=[ticket], owns=[ticket]), Verdict)
    assert_type(await spawn("judge", prompt="x", writes=[ticket]), Handle[AgentResult])

    async def day(so_far: Ticket) -> Ticket:
        return so_far

    assert_type(await loop(day, Ticket(), every="1h", until=lambda t: t.hours > 3), Ticket)
    return await loop(day, Ticket(), until=3)


@program
async def coder(input: CodingJob) -> WorkflowPlan:
    """Plans."""
    workspace = await coding.workspace(input, None, base_sha="0", round=0)
    plan = await run(
        "planner", prompt="Plan", output=WorkflowPlan, workspace=workspace, accept=coding.plan_rules(input, "0", repair=False)
    )
    verdict = await coding.plan_check(input, plan, base_sha="0")
    assert_type(verdict, PlanVerdict)
    return verdict.plan
