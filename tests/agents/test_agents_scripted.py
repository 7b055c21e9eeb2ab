"""The scripted model, as AGENTS.md says it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from agents_kit import QuickClock, ports_on, task, tool_results

from capataz.agents.harness import AgnoHarness
from capataz.agents.model_client import CallInfo, ClientReply, ProviderFailure
from capataz.agents.scripted import load_scripted
from capataz.contracts.canonical import digest
from capataz.contracts.errors import ProviderRejected, ProviderUnavailable, ScriptError
from capataz.contracts.harness import AgentOutcome
from capataz.contracts.units import usd
from capataz.testing.fake_ports import FakePorts


def script(tmp_path: Path, body: str, name: str = "script.py") -> str:
    path = tmp_path / name
    path.write_text(body)
    return f"scripted:{path}"


async def ask(model: str, **changes: Any) -> ClientReply:
    base: dict[str, Any] = {"agent": "a", "turn": 0, "run_id": "r", "data": None, "prompt": "p"}
    info = CallInfo(**{**base, **changes})
    return await load_scripted(model).reply(messages=[{"role": "user", "content": "p"}], tools=[], output_schema=None, max_output_tokens=9, call=info)


async def drive(model: str, ports: FakePorts | None = None, clock: Any = None, **changes: Any) -> AgentOutcome:
    return await AgnoHarness(load_scripted, clock or QuickClock()).run(task(model=model, **changes), ports or FakePorts())


async def test_tools_then_submit(tmp_path: Path) -> None:
    model = script(tmp_path, (
        "def respond(call):\n"
        "    if call.turn == 0:\n"
        "        return [tool('run_command', command='echo hi'), say('looking'), tool('list_directory')]\n"
        "    last = [m for m in call.messages if m['role'] == 'tool']\n"
        "    assert [m['tool_name'] for m in last] == ['run_command', 'list_directory'], last\n"
        "    asked = next(m for m in call.messages if m['tool_calls'])\n"
        "    assert asked['tool_calls'][0]['name'] == 'run_command' and asked['tool_calls'][0]['arguments'] == {'command': 'echo hi'}\n"
        "    return submit(status='completed', summary=last[0]['content'])\n"
    ))
    outcome = await drive(model, ports_on(tmp_path / "w"))
    assert "hi" in outcome.output["summary"] and outcome.turns == 2
    assert outcome.messages[2]["content"] == "looking"


async def test_what_a_call_knows(tmp_path: Path) -> None:
    model = script(tmp_path, (
        "import json\n"
        "def respond(call):\n"
        "    seen = dict(agent=call.agent, turn=call.turn, prompt=call.prompt, tools=call.tools, schema=call.output_schema['title'],\n"
        "                attempt=call.attempt, data=call.data, first=call.messages[0]['role'])\n"
        "    text = json.dumps(seen)\n"
        "    call.data.clear(); call.messages.clear()\n"
        "    return submit(status='completed', summary=text)\n"
    ))
    outcome = await drive(model, data={"k": [1]}, type="reason")
    seen = json.loads(outcome.output["summary"])
    assert seen == {
        "agent": "round-0/worker:a", "turn": 0, "prompt": outcome.messages[1]["content"], "tools": ["submit"], "schema": "WorkerOutput",
        "attempt": 0, "data": {"k": [1]}, "first": "system",
    }
    assert seen["prompt"].startswith("Do it.")


async def test_usage(tmp_path: Path) -> None:
    model = script(tmp_path, (
        "def respond(call):\n"
        "    return [say('x'), say('x').with_usage(5, 6), [tool('a'), tool('b').with_usage(7, 8)], sleep_s(0, then=say('y')).with_usage(1, 2), sleep_s(0, then=say('z').with_usage(3, 4))][call.turn]\n"
    ))
    used = [(await ask(model, turn=i)).usage for i in range(5)]
    assert [(u.input_tokens, u.output_tokens, u.usd) for u in used] == [(a, b, usd(0)) for a, b in [(1000, 100), (5, 6), (7, 8), (1, 2), (3, 4)]]


@pytest.mark.parametrize(
    ("call", "kind", "status", "after"),
    [
        ("fail(429, retry_after=3)", "http", 429, 3),
        ("fail(status=401)", "http", 401, None),
        ("fail()", "http", 500, None),
        ("fail(kind='stall')", "stall", None, None),
        ("fail(kind='reset')", "reset", None, None),
        ("fail(kind='truncated')", "truncated", None, None),
    ],
)
async def test_failures(tmp_path: Path, call: str, kind: str, status: int | None, after: float | None) -> None:
    began = time.monotonic()
    with pytest.raises(ProviderFailure) as raised:
        await ask(script(tmp_path, f"def respond(call):\n    return {call}\n"))
    assert (raised.value.kind, raised.value.status, raised.value.retry_after_s) == (kind, status, after)
    assert time.monotonic() - began < 1


async def test_attempts_count_and_recover(tmp_path: Path) -> None:
    model = script(tmp_path, (
        "def respond(call):\n"
        "    if call.attempt == 0: return fail(429, retry_after=2)\n"
        "    if call.attempt == 1: return fail(kind='stall')\n"
        "    return submit(status='completed', summary=str(call.attempt))\n"
    ))
    ports = FakePorts()
    outcome = await drive(model, ports)
    assert outcome.output["summary"] == "2" and outcome.turns == 1
    assert [(e[0], e[1]["attempt"]) for e in ports.events] == [("model.failed", 0), ("model.failed", 1)]


async def test_rejected_and_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ProviderRejected):
        await drive(script(tmp_path, "def respond(call):\n    return fail(401)\n"))
    with pytest.raises(ProviderUnavailable):
        await drive(script(tmp_path, "def respond(call):\n    return fail(kind='reset')\n", "b.py"))


async def test_raw_is_verbatim(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "dup", "type": "function", "function": {"name": "x", "arguments": "{bad"}}], "more": 1}
    assert (await ask(script(tmp_path, f"def respond(call):\n    return raw({message!r})\n"))).message == message


async def test_async_and_sleep(tmp_path: Path) -> None:
    model = script(tmp_path, (
        "import asyncio\n"
        "async def respond(call):\n"
        "    await asyncio.sleep(0)\n"
        "    return sleep_s(0.02, then=sleep_s(0.02, then=[tool('a'), tool('b')]))\n"
    ))
    began = time.monotonic()
    reply = await ask(model)
    assert time.monotonic() - began >= 0.04
    assert [c["function"]["name"] for c in reply.message["tool_calls"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def respond(call):\n    raise SystemExit(3)\n", "SystemExit"),
        ("def respond(call):\n    raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("def respond(call):\n    raise GeneratorExit\n", "GeneratorExit"),
        ("def respond(call):\n    return 1 / 0\n", "ZeroDivisionError"),
        ("def respond(call):\n    return respond(call)\n", "RecursionError"),
        ("import asyncio\nasync def respond(call):\n    raise asyncio.CancelledError\n", "CancelledError"),
        ("async def respond(call):\n    raise SystemExit\n", "SystemExit"),
        ("def respond(call):\n    return call.data['x']\n", "KeyError"),
        ("def respond(call):\n    return None\n", "no answer"),
        ("def respond(call):\n    return []\n", "no answer"),
        ("def respond(call):\n    return 'text'\n", "no answer"),
        ("def respond(call):\n    return sleep_s(0, then=3)\n", "no answer"),
        ("def respond(call):\n    return [tool('a'), fail()]\n", "list"),
        ("def respond(call):\n    return tool('a', x=object())\n", "JSON"),
        ("def respond(call):\n    return fail(kind='odd')\n", "odd"),
        ("def respond(call:\n", "parse"),
        ("x = 1\n", "no function respond"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
        ("raise SystemExit\n", "SystemExit"),
        ("def respond(call): return say('\0')\n", ""),
    ],
)
async def test_script_errors(tmp_path: Path, body: str, says: str) -> None:
    model = script(tmp_path, body)
    for _ in range(2):
        with pytest.raises(ScriptError) as raised:
            await drive(model)
        assert says in raised.value.message and "script.py" in raised.value.message
        assert "\n" not in raised.value.message


async def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"nowhere\.py"):
        await drive(f"scripted:{tmp_path}/nowhere.py")


async def test_cancelled_while_the_script_sleeps(tmp_path: Path) -> None:
    work = asyncio.ensure_future(drive(script(tmp_path, "def respond(call):\n    return sleep_s(60, then=say('x'))\n")))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    model = script(tmp_path, "def respond(call):\n    return say('one')\n")
    assert (await ask(model)).message["content"] == "one"
    script(tmp_path, "def respond(call):\n    return say('two!')\n")
    assert (await ask(model)).message["content"] == "two!"


async def test_scripts_may_use_dataclasses(tmp_path: Path) -> None:
    model = script(tmp_path, "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass X:\n    a: int = 1\ndef respond(call):\n    return say(str(X()))\n")
    assert (await ask(model)).message["content"] == "X(a=1)"


async def test_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setenv("CAPATAZ_SCRIPT_LOG", str(log))
    model = script(tmp_path, (
        "def respond(call):\n"
        "    if call.turn == 0 and call.attempt == 0: return fail(500)\n"
        "    if call.turn == 0: return tool('report_progress', message='x')\n"
        "    if call.turn == 1: return submit(status='completed', summary='s')\n"
    ))
    ports = FakePorts()
    await drive(model, ports)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(e["run"], e["agent"], e["turn"], e["attempt"], e["pid"]) for e in lines] == [("run1", "round-0/worker:a", t, a, os.getpid()) for t, a in [(0, 0), (0, 1), (1, 0)]]
    assert all(set(e) == {"run", "agent", "turn", "attempt", "pid", "digest"} for e in lines)
    assert lines[0]["digest"] == lines[1]["digest"] == digest(ports.model_calls[0][1]["messages"]) != lines[2]["digest"]


async def test_log_lines_of_many_calls_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setenv("CAPATAZ_SCRIPT_LOG", str(log))
    model = script(tmp_path, "async def respond(call):\n    return sleep_s(0, then=say('x'))\n")
    await asyncio.gather(*[ask(model, turn=i) for i in range(50)])
    assert sorted(json.loads(line)["turn"] for line in log.read_text().splitlines()) == list(range(50))


async def test_the_published_example(tmp_path: Path) -> None:
    model = script(tmp_path, (
        "def respond(call):\n"
        "    if call.turn == 0:\n"
        "        return tool('run_command', command='ls')\n"
        "    return submit(status='completed', summary='done')\n"
    ))
    ports = ports_on(tmp_path / "w")
    (tmp_path / "w/seen.txt").write_text("")
    outcome = await drive(model, ports)
    assert "seen.txt" in tool_results(outcome.messages)[0]
