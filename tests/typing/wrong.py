"""Each line with the mark must be rejected by both checkers, and no other line."""

# ruff: noqa: F841, RUF059

from __future__ import annotations

from pydantic import BaseModel

from capataz import Handle, ask, budget, fan_out, loop, program, race, run, scope, spawn, state, step


class Verdict(BaseModel):
    risk: str


class Other(BaseModel):
    n: int


@program
async def child(input: Other) -> Verdict:
    return Verdict(risk="low")


@program
async def alone() -> int:
    return 1


def read(path: str) -> bytes:
    return b""


async def one(item: int) -> str:
    return str(item)


def check(other: Other) -> None:
    return None


other = state("other", Other)


async def more(n: int) -> int:
    return n + 1


async def wrong() -> None:
    await other.set(Verdict(risk="low"))  # rejected
    n: Verdict = await other.get()  # rejected
    await other.update(lambda o: Verdict(risk="low"))  # rejected
    await other.until(lambda o: o.risk)  # rejected
    state("x", Other, reach="world")  # rejected
    await run("judge", prompt="x", reads=other)  # rejected
    await loop(more, "a")  # rejected
    await loop(more, 0, until=lambda n: n.risk)  # rejected
    m: str = await loop(more, 0)  # rejected
    a: str = await run("judge", prompt="x", output=Verdict)  # rejected
    b: Verdict = await run("judge", prompt="x")  # rejected
    await run("judge")  # rejected
    await run("judge", prompt=1)  # rejected
    await run("judge", prompt="x", type="write")  # rejected
    await run("judge", prompt="x", unknown=1)  # rejected
    await run(child, input=Verdict(risk="low"))  # rejected
    await run(child)  # rejected
    await run(alone, input=1)  # rejected
    c: int = await run(child, input=Other(n=1))  # rejected
    await run("judge", prompt="x", output=Verdict, accept=check)  # rejected
    d: Handle[Other] = await spawn(child, input=Other(n=1))  # rejected
    await spawn("worker", prompt="x", daemon="yes")  # rejected
    e: list[int] = await fan_out([1], one)  # rejected
    f: list[str] = await fan_out([1], one, on_error="collect")  # rejected
    await fan_out(["a"], one)  # rejected
    await fan_out([1], one, on_error="ignore")  # rejected
    g: int = await race(one(1))  # rejected
    scope(1)  # rejected
    scope("x", budget=5)  # rejected
    budget(dollars=5)  # rejected
    h: str = await step("read", read, "a")  # rejected
    await step("read", read, 1)  # rejected
    await step(read, "a")  # rejected
    await ask("Which?", kind="vote")  # rejected
    i: str = (await ask("What?", kind=Verdict)).value  # rejected
    async with scope("x") as (j, k):  # rejected
        pass


@program  # rejected
def not_async(input: Other) -> Verdict:
    return Verdict(risk="low")


@program  # rejected
async def too_many(input: Other, more: int) -> Verdict:
    return Verdict(risk="low")
