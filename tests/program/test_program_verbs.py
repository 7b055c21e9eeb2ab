"""What the verbs ask for and give back."""

from __future__ import annotations

from typing import Any

import pytest
from program_kit import echo, files, play, trace

from capataz.contracts.errors import (
    AgentFailed,
    DeadlineExceeded,
    EffectCancelled,
    OutputInvalid,
    ProgramFailed,
    ProgramLoadError,
    UsageError,
    ValueNotSerializable,
)
from capataz.vm.rehearsal import LATER, rehearse
from capataz.vm.zygote import Zygote


async def test_agent_request(zygote: Zygote) -> None:
    body = """
    from dataclasses import dataclass
    from pydantic import BaseModel
    @dataclass
    class Data:
        a: int
    class Verdict(BaseModel):
        risk: str
    @program
    async def main() -> Verdict:
        return await run("judge", prompt="p", data=Data(1), type="read", model="m", tools=["read_file"], output=Verdict,
            max_turns=3, budget=budget(usd="1.5", wall="1m"), within="5m", on_exhausted="pause", harness="command:x")
    """
    async with rehearse(zygote) as rehearsal:
        (request,) = (await rehearsal.start("audit:main", files(body)))["requests"]
        assert request == {
            "no": 0,
            "n": 0,
            "after": 0,
            "kind": "agent",
            "scope": "",
            "name": "judge",
            "site": "audit.py:17",
            "input": {
                "prompt": "p",
                "data": {"a": 1},
                "type": "read",
                "model": "m",
                "tools": ["read_file"],
                "workspace": None,
                "reads": None,
                "writes": None,
                "harness": "command:x",
                "output_schema": {
                    "properties": {"risk": {"title": "Risk", "type": "string"}},
                    "required": ["risk"],
                    "title": "Verdict",
                    "type": "object",
                },
            },
            "args": {
                "max_turns": 3,
                "budget": {"usd": "1.5", "wall_s": 60.0},
                "within_s": 300.0,
                "on_exhausted": "pause",
                "accept": None,
                "context": None,
                "states": None,
                "text": False,
            },
        }
        done = await rehearsal.deliver({"no": 0, "ok": {"output": {"risk": "low"}, "text": "", "turns": 1, "usage": {}}})
        assert done["result"] == {"risk": "low"}


async def test_output_is_validated_again(zygote: Zygote) -> None:
    body = """
    from pydantic import BaseModel
    class Verdict(BaseModel):
        risk: int
    @program
    async def main() -> Verdict:
        return await run("judge", prompt="p", output=Verdict, data={"risk": "high"})
    """
    with pytest.raises(OutputInvalid, match=r"audit\.py:13: .* no valid Verdict: risk: "):
        await play(zygote, body)


async def test_plain_outputs_are_wrapped(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> list[int]:
        return await run("list", prompt="p", output=list[int], accept=lambda xs: None if xs == [1] else "no")
    """
    async with rehearse(zygote) as rehearsal:
        (request,) = (await rehearsal.start("audit:main", files(body)))["requests"]
        assert request["input"]["output_schema"]["properties"]["value"]["type"] == "array"
        callback = request["args"]["accept"]["callback"]
        assert (await rehearsal.send(t="call", id=1, callback=callback, args=[{"value": [1]}])) == {"t": "called", "id": 1, "ok": None}
        assert (await rehearsal.send(t="call", id=2, callback=callback, args=[{"value": [2]}]))["ok"] == "no"
        done = await rehearsal.deliver({"no": 0, "ok": {"output": {"value": [1, 2]}, "text": "", "turns": 1, "usage": {}}})
        assert done["result"] == [1, 2]


async def test_scopes_and_fan_out_name_places(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> None:
        async def work(item):
            await run("w", prompt=item)
        async with scope("round-0"):
            await fan_out(["a/b", "c", "c"], work, key=str)
            with scope("inner"):
                await run("x", prompt="1")
        await fan_out([1], lambda i: run("y", prompt=str(i)))
    """
    assert await trace(zygote, body) == [
        "round-0/~work[a%2Fb]|agent:w:a/b",
        "round-0/~work[c]|agent:w:c",
        "round-0/~work[c.1]|agent:w:c",
        "round-0/inner|agent:x:1",
        "~lambda[6b86b273ff34fce1]|agent:y:1",
    ]


async def test_fan_out_limits_orders_and_collects(zygote: Zygote) -> None:
    body = """
    running = peak = 0
    async def work(item):
        global running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(10 - item)
        running -= 1
        if item == 2:
            return (await run("bad", prompt="x")).text
        return item
    @program
    async def main() -> dict:
        got = await fan_out(range(6), work, limit=3, on_error="collect", key=str)
        return {"got": got, "peak": peak}
    """

    def answer(request: dict[str, Any]) -> Any:
        if request["kind"] == "agent":
            raise AgentFailed("broke")
        return echo(request)

    result = await play(zygote, body, answer=answer)
    assert result["peak"] == 3
    failure = result["got"].pop(2)
    assert failure["key"] == "2" and failure["error"]["code"] == "agent_failed"
    assert result["got"] == [0, 1, 3, 4, 5]
    with pytest.raises(AgentFailed, match="broke"):
        await play(zygote, body.replace("collect", "raise"), answer=answer)


async def test_race_cancels_the_others(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> str:
        async def slow():
            return (await run("slow", prompt="slow")).text
        handle = await spawn("bg", prompt="bg")
        won = await race(slow(), handle, asyncio.sleep(5, "slept"))
        try:
            await handle
        except EffectCancelled as error:
            return f"{won} {error}"
    """
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body))
        assert [r["kind"] for r in frame["requests"]] == ["agent", "agent", "sleep"]
        frame = await rehearsal.deliver({"no": 2, "ok": None})
        assert frame["result"] == "slept another one won the race"
        assert sorted(c[0] for c in frame["cancels"]) == [0, 1]


async def test_deadlines(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> list:
        said = []
        try:
            async with scope("short", within="5s"):
                handle = await spawn("bg", prompt="never")
                await run("slow", prompt="never")
        except DeadlineExceeded as error:
            said.append(str(error))
        try:
            await handle
        except EffectCancelled:
            said.append("cancelled")
        async with scope("long", within="5s"):
            said.append((await run("fast", prompt="fast")).text)
        try:
            await asyncio.wait_for(run("slow", prompt="never"), 3)
        except TimeoutError:
            said.append("timeout")
        return said
    """

    def answer(request: dict[str, Any]) -> Any:
        return LATER if request["input"].get("prompt") == "never" else echo(request)

    assert await play(zygote, body, answer=answer) == [
        "audit.py:12: scope 'short' did not end within 5 s", "cancelled", "fast", "timeout",
    ]  # fmt: skip


async def test_errors_inside_a_scope_stay_what_they_are(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> None:
        async with scope("a", within=60):
            raise TimeoutError("mine")
    """
    with pytest.raises(ProgramFailed, match=r"audit\.py:11: TimeoutError: mine"):
        await play(zygote, body)


async def test_program_waits_for_what_it_spawned(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> str:
        await spawn("a", prompt="a")
        await spawn("b", prompt="never", daemon=True)
        asyncio.create_task(run("c", prompt="never"))
        await asyncio.sleep(0)
        return "end"
    """
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body))
        assert frame["t"] == "batch" and len(frame["requests"]) == 3
        frame = await rehearsal.deliver({"no": 0, "ok": {"text": "", "output": None}})
        assert frame["t"] == "done" and frame["result"] == "end"
        assert [c[0] for c in frame["cancels"]] == [2, 1]


async def test_unseen_failure_of_spawned_work_is_raised(zygote: Zygote) -> None:
    body = """
    @program
    async def main(input: bool) -> str:
        handle = await spawn("a", prompt="a")
        await spawn("b", prompt="b")
        if input:
            try:
                await handle
            except AgentFailed:
                return "seen"
        return "end"
    """

    def answer(request: dict[str, Any]) -> Any:
        if request["name"] == "a":
            raise AgentFailed("broke")
        return echo(request)

    assert await play(zygote, body, True, answer=answer) == "seen"
    with pytest.raises(AgentFailed, match="broke"):
        await play(zygote, body, False, answer=answer)


async def test_handle_steers_and_waiting_may_end_without_it(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> list:
        handle = await spawn("a", prompt="a")
        await handle.notify("Parser first")
        await handle.pause()
        await handle.resume()
        said = [await handle.status(), repr(handle)]
        try:
            await asyncio.wait_for(handle.result(), 1)
        except TimeoutError:
            said.append("still running")
        await checkpoint("go")
        first, second = await asyncio.gather(handle, handle)
        await handle.cancel("late")
        return [*said, first.text, second.text, (await handle).text]
    """
    ops: list[Any] = []
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body))
        cancels: list[Any] = []
        done = False
        while frame["t"] == "batch":
            cancels += frame["cancels"]
            request = frame["requests"][-1] if frame["requests"] else {"no": 0, "kind": "agent"}
            if request["kind"] == "control":
                ops.append(request["input"])
            if request["kind"] == "checkpoint":
                done = True
            if request["kind"] == "agent" and not done:
                request = frame["requests"][-1]
            ok = {"state": "running"} if request["kind"] == "control" else {"text": "end", "output": None}
            frame = await rehearsal.deliver({"no": request["no"], "ok": ok})
            if done and request["kind"] == "checkpoint":
                frame = await rehearsal.deliver({"no": 0, "ok": {"text": "end", "output": None}})
        assert frame["result"] == ["running", "<Handle 'a' running>", "still running", "end", "end", "end"]
        assert [(o["target"], o["op"], o["text"]) for o in ops] == [
            (0, "notify", "Parser first"), (0, "pause", None), (0, "resume", None), (0, "status", None),
        ]  # fmt: skip
        assert cancels == []


async def test_cancel_is_seen_by_who_waits(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> str:
        handle = await spawn("a", prompt="never")
        await handle.cancel("not needed")
        try:
            await handle
        except EffectCancelled as error:
            return str(error)
    """
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body))
        assert frame["result"] == "not needed"
        assert frame["cancels"] == [[0, "not needed", 0]]


async def test_children(zygote: Zygote) -> None:
    body = """
    from pydantic import BaseModel
    class In(BaseModel):
        pr: int
    class Out(BaseModel):
        ok: bool
    @program
    async def child(input: In) -> Out:
        return Out(ok=True)
    @program
    async def nothing() -> None:
        pass
    @program
    async def main() -> list:
        handle = await spawn(child, input=In(pr=1))
        loaded = await run(load("dir/other.py:thing"), input={"x": 1}, within="1m")
        return [await handle, loaded, await run(nothing)]
    """
    asked: list[Any] = []

    def answer(request: dict[str, Any]) -> Any:
        asked.append((request["kind"], request["name"], request["input"], request["args"]))
        return {"ok": True} if request["name"] != "thing" else {"any": 1}

    assert await play(zygote, body, answer=answer) == [{"ok": True}, {"any": 1}, None]
    assert asked == [
        ("child", "child", {"program": "audit:child", "input": {"pr": 1}}, {"budget": None, "within_s": None, "loaded": False}),
        ("child", "thing", {"program": "dir/other.py:thing", "input": {"x": 1}}, {"budget": None, "within_s": 60.0, "loaded": True}),
        ("child", "nothing", {"program": "audit:nothing", "input": None}, {"budget": None, "within_s": None, "loaded": False}),
    ]
    wrong = body.replace("input=In(pr=1)", "input={'pr': 'x'}")
    with pytest.raises(ProgramLoadError, match=r"audit\.py:21: .*wrong input of child: pr: "):
        await play(zygote, wrong)


async def test_people_time_and_files(zygote: Zygote) -> None:
    body = """
    from datetime import timedelta
    from pydantic import BaseModel
    class Form(BaseModel):
        n: int
    @program
    async def main() -> dict:
        a = await ask("Deploy?", binding="d" * 4, approvers=["ana"], within="2d", default="decline")
        b = await ask("Fill in", kind=Form)
        await tell("ana", "hello", severity="page")
        await sleep(timedelta(minutes=2))
        uri = await artifact("a.bin", b"\\xff\\x00")
        same = await artifact("a.txt", "text", "text/plain")
        m = await messages()
        r = await receive(Form, within=5)
        return {"a": [a.value, a.who, a.when, a.channel, a.note, a.approved], "b": b.value.n, "uri": uri, "same": same,
                "m": m, "r": r.n, "now": await now()}
    """
    asked: dict[str, Any] = {}

    def answer(request: dict[str, Any]) -> Any:
        asked.setdefault(request["kind"], []).append((request["input"], request["args"]))
        match request["kind"]:
            case "ask":
                value = {"n": 3} if request["input"]["kind"] == "model" else "approve"
                return {"value": value, "by": "ana", "at": 1_700_000_000.0, "channel": "cli", "note": None}
            case "artifact":
                return {"uri": "blob:1"}
            case "messages":
                return [{"id": "inbox-1", "body": "hi", "sender": "bo", "at": 1_700_000_000.0}]
            case "receive":
                return {"id": "inbox-2", "body": {"n": 4}, "sender": "bo", "at": 1_700_000_000.0}
            case _:
                return echo(request)

    got = await play(zygote, body, answer=answer)
    at = "2023-11-14T22:13:20+00:00"
    assert got == {
        "a": ["approve", "ana", at, "cli", None, True], "b": 3, "uri": "blob:1", "same": "blob:1", "r": 4, "now": at,
        "m": [{"body": "hi", "sender": "bo", "at": at, "id": "inbox-1"}],
    }  # fmt: skip
    first, second = asked["ask"]
    assert first[0]["options"] == ["approve", "decline"] and first[0]["binding"] == "dddd" and first[0]["schema"] is None
    assert first[1] == {"approvers": ["ana"], "channel": None, "risk": None, "within_s": 172_800.0, "default": "decline"}
    assert second[0]["kind"] == "model" and second[0]["schema"]["required"] == ["n"] and "default" not in second[1]
    assert [a[0]["data"] for a in asked["artifact"]] == [{"b64": "/wA="}, "text"]


async def test_budgets(zygote: Zygote) -> None:
    body = """
    @program(budget=budget(turns=7))
    async def main() -> None:
        async with scope("a", budget=budget(usd=1, sandbox_seconds="2m")):
            await run("x", prompt="1")
        with scope("b", budget=budget(usd=1)):
            pass
    """
    asked: list[Any] = []

    def answer(request: dict[str, Any]) -> Any:
        asked.append((request["kind"], request["scope"], request["input"]))
        return echo(request)

    with pytest.raises(UsageError, match=r"audit\.py:12: a scope with a budget or a deadline needs `async with`"):
        await play(zygote, body, answer=answer)
    assert asked[0] == ("budget", "", {"turns": 7})
    assert asked[1] == ("budget", "a", {"usd": "1", "sandbox_s": 120.0})


async def test_callbacks(zygote: Zygote) -> None:
    body = """
    import random
    from pydantic import BaseModel
    class Out(BaseModel):
        n: int
    def positive(out: Out):
        random.random()
        if out.n < 0:
            raise ValueError(f"{out.n} is negative")
        return True if out.n else "zero"
    async def waits(out):
        await run("x", prompt="1")
    @program
    async def main() -> list:
        task = asyncio.create_task(run("b", prompt="p", accept=waits))
        out = await run("a", prompt="p", output=Out, accept=positive, context=lambda messages: messages[-1:])
        await task
        return [out.n, random.random()]
    """
    results = []
    for calls in (0, 3):
        async with rehearse(zygote) as rehearsal:
            frame = await rehearsal.start("audit:main", files(body))
            a, b = frame["requests"]
            accept, context = a["args"]["accept"], a["args"]["context"]
            assert (accept["attempts"], accept["then"]) == (1, "error")

            async def call(callback: int, *args: Any, rehearsal: Any = rehearsal) -> Any:
                return await rehearsal.send(t="call", id=1, callback=callback, args=list(args))

            for _ in range(calls):
                assert (await call(accept["callback"], {"n": 1}))["ok"] is None
                assert (await call(accept["callback"], {"n": 0}))["ok"] == "zero"
                assert (await call(accept["callback"], {"n": -1}))["ok"] == "-1 is negative"
                assert "n" in (await call(accept["callback"], {"n": "x"}))["ok"]
                assert (await call(context["callback"], [1, 2]))["ok"] == [2]
                assert (await call(b["args"]["accept"]["callback"], "x"))["error"]["code"] == "impure_program"
            items = [{"no": r["no"], "ok": {"output": {"n": 1}, "text": ""}} for r in (a, b)]
            results.append((await rehearsal.deliver(*items))["result"])
    assert results[0] == results[1]


BAD = {
    "run(5)": (ProgramFailed, "TypeError: run\\(\\) takes an agent's name"),
    "run('a')": (ProgramFailed, "prompt"),
    "run('a', prompt='x', typ='read')": (ProgramFailed, "typ"),
    "run('a', prompt='x', type='write')": (UsageError, "an agent is reason, read or general"),
    "run('a', prompt='x', data=[1])": (ValueNotSerializable, "data= must be a dict"),
    "run('a', prompt='x', data={'x': object()})": (ValueNotSerializable, "object"),
    "run('a', prompt='x', within='soon')": (UsageError, "no duration"),
    "run('a', prompt='x', output=asyncio.Event)": (ValueNotSerializable, "Event cannot be used"),
    "fan_out([1], lambda x: x, limit=0)": (UsageError, "limit=0"),
    "ask('x', kind='choice')": (UsageError, "needs options"),
    "ask('x', kind='vote')": (UsageError, "approval, choice, text or a model"),
    "race()": (UsageError, "at least one"),
    "checkpoint('x', {1: 2})": (ValueNotSerializable, "string keys"),
    "step('x', print, float('nan'))": (ValueNotSerializable, "nan"),
}


@pytest.mark.parametrize("call", BAD)
async def test_bad_calls_say_what_is_wrong(zygote: Zygote, call: str) -> None:
    kind, text = BAD[call]
    with pytest.raises(kind, match=text) as caught:
        await play(zygote, f"@program\nasync def main() -> None:\n    await {call}\n")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a//b", "~a", "a/~b", "/"])
async def test_bad_scope_names(zygote: Zygote, name: str) -> None:
    with pytest.raises(UsageError, match="a name is text"):
        await play(zygote, f"@program\nasync def main() -> None:\n    scope({name!r})\n")


async def test_outside_a_program(zygote: Zygote) -> None:
    import capataz

    with pytest.raises(Exception, match="only inside a running program"):
        await capataz.run("a", prompt="x")
    assert EffectCancelled and DeadlineExceeded
