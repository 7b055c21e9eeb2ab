"""What the tests of the harness share: a model that answers from a list, and tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capataz.agents.harness import AgnoHarness
from capataz.agents.model_client import CallInfo, ClientReply
from capataz.contracts.harness import AgentLimits, AgentOutcome, AgentTask
from capataz.contracts.journal import Usage
from capataz.contracts.records import WorkerOutput
from capataz.testing.fake_ports import FakePorts
from capataz.testing.fake_session import FakeSession

SCHEMA = WorkerOutput.model_json_schema()
DONE = ("submit", {"status": "completed", "summary": "done"})


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*requests: tuple[str, Any], ids: list[str] | None = None) -> dict[str, Any]:
    made = [
        {"id": ids[i] if ids else f"c{i}", "type": "function", "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)}}
        for i, (name, args) in enumerate(requests)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


class ListClient:
    """Answers from a list of messages, callables of ``(messages, call)`` or exceptions; keeps every request."""

    model = "test/list"

    def __init__(self, *answers: Any, window_tokens: int = 0) -> None:
        self.answers = list(answers)
        self.window_tokens = window_tokens
        self.requests: list[list[dict[str, Any]]] = []
        self.infos: list[CallInfo] = []
        self.tools: list[list[str]] = []

    async def reply(self, *, messages: list[dict[str, Any]], tools: list[dict[str, Any]], output_schema: Any, max_output_tokens: int, call: CallInfo) -> ClientReply:
        self.requests.append(json.loads(json.dumps(messages)))
        self.infos.append(call)
        self.tools.append([t["function"]["name"] for t in tools])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Callable):
            answer = answer(messages, call)
        if isinstance(answer, tuple):
            answer = calls(answer)
        return ClientReply(message=answer, usage=Usage(input_tokens=10, output_tokens=5))


class QuickClock:
    """Sleeps take no time but are remembered."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def task(**changes: Any) -> AgentTask:
    base: dict[str, Any] = {
        "run_id": "run1", "key": "k", "name": "round-0/worker:a", "type": "general", "prompt": "Do it.", "data": None, "model": "test/list",
        "output_schema": SCHEMA, "tools": None, "limits": AgentLimits(),
    }
    return AgentTask(**{**base, **changes})


def ports_on(root: Path, **changes: Any) -> FakePorts:
    root.mkdir(exist_ok=True)
    return FakePorts(session_=FakeSession(root), root=root, **changes)


async def run(client: Any, ports: FakePorts | None = None, **changes: Any) -> AgentOutcome:
    harness = AgnoHarness(lambda model: client, QuickClock())
    return await harness.run(task(**changes), ports if ports is not None else FakePorts())


def tool_results(messages: list[Any]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "tool"]


def is_well_formed(messages: list[dict[str, Any]]) -> bool:
    """Every tool request is followed by its results, in order, and ids are unique."""
    open_ids: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if not open_ids or message["tool_call_id"] != open_ids.pop(0):
                return False
            continue
        if open_ids:
            return False
        for call in message.get("tool_calls") or []:
            if call["id"] in seen:
                return False
            seen.add(call["id"])
            open_ids.append(call["id"])
    return not open_ids
