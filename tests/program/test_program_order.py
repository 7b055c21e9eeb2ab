"""The law "two processes, one order": what is asked depends on deliveries alone, not on addresses, hashes or time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from program_kit import files, play

from capataz.vm.rehearsal import Rehearsal, rehearse
from capataz.vm.zygote import Zygote

NAMES = [f"n{i}" for i in range(23)]

AS_COMPLETED = """
@program
async def main(input: list[str]) -> list[str]:
    # Objects before and between: addresses differ from process to process.
    ballast = [object() for _ in range(int(input[0], 16) % 977)]
    async def one(name):
        first = await run(name, prompt="1")
        return (await run(name, prompt="2")).text + name
    return [await done for done in asyncio.as_completed([one(n) for n in input[1:]])]
"""
WAIT = """
@program
async def main(input: list[str]) -> list[str]:
    ballast = [[] for _ in range(int(input[0], 16) % 977)]
    async def one(name):
        await run(name, prompt="1")
        return name
    left = {asyncio.create_task(one(n)) for n in input[1:]}
    order = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for task in [t for t in done if not t.cancelled()]:
            order.append(task.result())
            await run("after", prompt=task.result())
        if len(left) == 5:
            for task in left:
                task.cancel()
            for task in asyncio.all_tasks():
                await checkpoint(str(task is asyncio.current_task()))
    return order
"""
GROUP = """
@program
async def main(input: list[str]) -> list[str]:
    ballast = [{} for _ in range(int(input[0], 16) % 977)]
    order = []
    async def one(name):
        try:
            await run(name, prompt="1")
            if name == "n7":
                raise ValueError(name)
            await run(name, prompt="2")
        except asyncio.CancelledError:
            await run("clean", prompt=name)
            order.append(name)
            raise
    try:
        async with asyncio.TaskGroup() as group:
            for n in input[1:]:
                group.create_task(one(n))
    except* ValueError:
        pass
    return order
"""
TIMEOUTS = """
@program
async def main(input: list[str]) -> list[str]:
    ballast = [() for _ in range(int(input[0], 16) % 977)]
    async def one(i, name):
        try:
            async with asyncio.timeout(3 + i % 4):
                await run(name, prompt="1")
                await asyncio.sleep(1 + i % 5)
                return "slept " + name
        except TimeoutError:
            return (await run("late", prompt=name)).text
    return await asyncio.gather(*(one(i, n) for i, n in enumerate(input[1:])))
"""
RACE = """
@program
async def main(input: list[str]) -> list[str]:
    ballast = [set() for _ in range(int(input[0], 16) % 977)]
    async def one(name):
        await run(name, prompt="1")
        return (await run(name, prompt="2")).text + name
    won = []
    for k in range(0, len(input) - 5, 5):
        won.append(await race(*(one(n) for n in input[1 + k : 6 + k])))
    queue, event = asyncio.Queue(), asyncio.Event()
    async def producer():
        for n in input[1:4]:
            await queue.put((await run(n, prompt="q")).text)
        event.set()
    task = asyncio.create_task(producer())
    won += [await queue.get() for _ in range(3)]
    await event.wait()
    return won
"""


async def batches(rehearsal: Rehearsal, body: str, salt: str, backwards: bool) -> list[dict[str, object]]:
    """Runs a program; each time the oldest (or the newest) open request is answered."""
    frame = await rehearsal.start("audit:main", files(body), [salt, *NAMES])
    waiting: dict[int, object] = {}
    while frame["t"] == "batch":
        waiting |= {r["no"]: r for r in frame["requests"]}
        for no, *_ in frame["cancels"]:
            waiting.pop(no, None)
        no = (max if backwards else min)(waiting)
        waiting.pop(no)
        frame = await rehearsal.deliver({"no": no, "ok": {"output": None, "text": f"t{no}", "turns": 1, "usage": {}}})
    return rehearsal.log


@pytest.mark.parametrize("body", [AS_COMPLETED, WAIT, GROUP, TIMEOUTS, RACE], ids=["as_completed", "wait", "group", "timeouts", "race"])
@pytest.mark.parametrize("backwards", [False, True], ids=["oldest", "newest"])
async def test_processes_agree(zygote: Zygote, body: str, backwards: bool) -> None:
    logs = []
    for salt in ("0", "3a1", "2f0"):
        async with rehearse(zygote) as rehearsal:
            logs.append(await batches(rehearsal, body, salt, backwards))
    assert logs[0][-1]["t"] == "done", logs[0][-1]
    assert len(logs[0]) > 5
    assert logs[0] == logs[1] == logs[2]


async def test_another_interpreter_agrees(zygote: Zygote) -> None:
    """Another zygote has other addresses altogether."""
    other = await Zygote.start()
    try:
        for body in (AS_COMPLETED, WAIT, GROUP):
            async with rehearse(zygote) as one, rehearse(other) as two:
                assert await batches(one, body, "0", False) == await batches(two, body, "0", False)
    finally:
        await other.close()


async def test_deliveries_may_come_in_any_grouping(zygote: Zygote) -> None:
    """Requests and what they follow from are the same, whether items come one by one or many in a frame."""
    body = """
    @program
    async def main(input: int) -> list[str]:
        async def one(i):
            first = await run("a", prompt=str(i))
            return (await run("b", prompt=first.text)).text
        return list(await asyncio.gather(*(one(i) for i in range(input))))
    """
    seen = []
    for size in (1, 3, 100):
        async with rehearse(zygote) as rehearsal:
            frame = await rehearsal.start("audit:main", files(body), 9)
            open_, asked = [], []
            while frame["t"] == "batch":
                asked += frame["requests"]
                open_ += [r["no"] for r in frame["requests"]]
                now, open_ = open_[:size], open_[size:]
                items = [{"no": no, "ok": {"output": None, "text": f"t{no}", "turns": 1, "usage": {}}, "now": 5} for no in now]
                frame = await rehearsal.send(t="deliver", items=items)
            seen.append(([{k: v for k, v in r.items() if k != "after"} for r in asked if r["name"] == "a"], frame["t"]))
    assert seen[0] == seen[1] == seen[2]


async def test_ten_thousand_effects(zygote: Zygote) -> None:
    """The program's own part of 10,000 effects, in processor time: other work on the machine does not count."""
    body = """
    @program
    async def main(input: int) -> int:
        return len(await asyncio.gather(*(checkpoint("x") for _ in range(input))))
    """
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body), 10_000)
        before = processor_s(rehearsal.process.pid)
        frame = await rehearsal.deliver(*({"no": request["no"], "ok": None} for request in frame["requests"]))
        assert frame["result"] == 10_000
        assert processor_s(rehearsal.process.pid) - before < 0.5


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_waiting_for_ever_is_an_error(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> None:
        await checkpoint("x")
        await asyncio.Event().wait()
    """
    with pytest.raises(Exception, match=r"audit\.py:11: the program waits here for ever"):
        await play(zygote, body)
