"""What we rely on in Agno, pinned (AGENTS.md, "Facts about Agno"). A failure here after an upgrade means: read the release notes."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest
from agno.agent import Agent
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.tools.function import Function


class Plain(Model):
    """Agno's own loop over a function."""

    def __init__(self, answer: Any) -> None:
        super().__init__(id="plain")
        self.answer = answer
        self.seen: list[list[Message]] = []

    async def ainvoke(self, messages: list[Message], **_: Any) -> ModelResponse:
        self.seen.append(list(messages))
        return await self.answer(messages, len(self.seen) - 1)

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    invoke = invoke_stream = ainvoke_stream = _parse_provider_response = _parse_provider_response_delta = _unused


def request(name: str, arguments: str = "{}", id: str = "1") -> ModelResponse:
    return ModelResponse(role="assistant", tool_calls=[{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}])


def agent(model: Model, **options: Any) -> Agent:
    return Agent(model=model, telemetry=False, resolve_in_context=False, system_message="{x} stays", **options)


async def test_messages_are_what_we_said() -> None:
    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        return ModelResponse(role="assistant", content="hi")

    model = Plain(answer)
    run = await agent(model).arun("{y} too", stream=False)
    assert [(m.role, m.content) for m in model.seen[0]] == [("system", "{x} stays"), ("user", "{y} too")]
    assert run.status == "COMPLETED"


async def test_ordinary_exceptions_become_a_status(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        raise ValueError("lost")

    logging.getLogger("agno").setLevel(logging.CRITICAL)
    run = await agent(Plain(answer)).arun("x", stream=False)
    assert run.status == "ERROR"


async def test_base_exceptions_come_out() -> None:
    class Ended(BaseException):
        pass

    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        raise Ended

    with pytest.raises(Ended):
        await agent(Plain(answer)).arun("x", stream=False)


async def test_the_messages_argument_is_the_live_list() -> None:
    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        if turn == 0:
            messages.append(Message(role="user", content="steer"))
            return request("f")
        return ModelResponse(role="assistant", content="done")

    async def f(**_: Any) -> str:
        return "result"

    model = Plain(answer)
    tool = Function(name="f", description="d", parameters={"type": "object", "properties": {}}, entrypoint=f, skip_entrypoint_processing=True)
    await agent(model, tools=[tool]).arun("x", stream=False)
    assert [m.role for m in model.seen[1]] == ["system", "user", "user", "assistant", "tool"]


async def test_there_is_no_turn_limit() -> None:
    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        return request("f", id=str(turn)) if turn < 11 else ModelResponse(role="assistant", content="done")

    async def f(**_: Any) -> str:
        return "r"

    model = Plain(answer)
    tool = Function(name="f", description="d", parameters={"type": "object", "properties": {}}, entrypoint=f, skip_entrypoint_processing=True)
    await agent(model, tools=[tool], tool_call_limit=3).arun("x", stream=False)
    assert len(model.seen) == 12


async def test_the_hooks_of_the_loop_that_we_override_exist() -> None:
    """``get_function_calls_to_run`` gives whatever objects; ``arun_function_calls`` gets them; a result may stop the loop."""
    got: list[Any] = []

    class Ours(Plain):
        def get_function_calls_to_run(self, assistant_message: Message, messages: Any, functions: Any = None) -> Any:
            return ["one", "two"]

        async def arun_function_calls(self, function_calls: Any, function_call_results: list[Message], **_: Any) -> Any:  # type: ignore[override]
            got.extend(function_calls)
            function_call_results.append(Message(role="tool", content="r", tool_call_id="1", stop_after_tool_call=True))
            yield ModelResponse(event="ToolCallCompleted")

    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        return request("nowhere", "{bad")

    model = Ours(answer)
    run = await agent(model).arun("x", stream=False)
    assert got == ["one", "two"] and len(model.seen) == 1 and run.status == "COMPLETED"


async def test_cancelling_our_own_task_is_seen_at_once() -> None:
    started = asyncio.Event()

    async def answer(messages: list[Message], turn: int) -> ModelResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    work = asyncio.ensure_future(agent(Plain(answer)).arun("x", stream=False))
    await started.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


def test_neither_agno_nor_jsonschema_is_loaded_before_the_first_run() -> None:
    code = "import sys, capataz.agents.harness, capataz.agents.scripted; print([m for m in sys.modules if m.split('.')[0] in ('agno', 'jsonschema', 'openai', 'httpx')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
