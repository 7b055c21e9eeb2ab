"""The proxy as programs see it: the providers' own SDKs over its unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_ports import FakePorts, task

from capataz.agents.command.http import UnixServer
from capataz.agents.command.proxy import ModelProxy
from capataz.agents.model_client import CallInfo, ClientReply, ModelClient, ProviderFailure
from capataz.agents.models import ModelsConfig
from capataz.contracts.clock import SystemClock
from capataz.contracts.errors import BudgetExhausted, ProviderRejected, TurnsExhausted
from capataz.contracts.harness import AgentLimits
from capataz.contracts.journal import Usage
from capataz.contracts.masking import Masker
from capataz.contracts.signals import Drained
from capataz.testing.provider_server import Call, Failure, ProviderServer, Reply, Truncated


class Scripted:
    """A client that answers by a function of (messages, tools, call)."""

    model = "scripted:/x.py"
    window_tokens = 0

    def __init__(self, respond: Callable[..., Any]) -> None:
        self.respond = respond
        self.asked: list[tuple[list[dict[str, Any]], list[dict[str, Any]], CallInfo]] = []

    async def reply(self, *, messages: Any, tools: Any, call: CallInfo, **_: Any) -> ClientReply:
        self.asked.append((messages, tools, call))
        answer = self.respond(messages, tools, call)
        answer = await answer if asyncio.iscoroutine(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def said(content: str = "", *calls: tuple[str, str]) -> ClientReply:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [{"id": "same", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return ClientReply(message=message, usage=Usage(input_tokens=120, cached_tokens=20, output_tokens=7))


class Inside:
    """What a program holds: clients of the SDKs on the socket."""

    def __init__(self, path: Path, proxy: ModelProxy) -> None:
        import anthropic
        import httpx2
        import openai

        self.proxy = proxy
        self.http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://proxy")
        self.openai = openai.AsyncOpenAI(api_key="dummy", base_url="http://proxy/v1", http_client=self.http, max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(api_key="dummy", base_url="http://proxy", http_client=self.http, max_retries=0)


@pytest.fixture
def ports() -> FakePorts:
    return FakePorts()


@pytest.fixture
def serve(tmp_path: Path, ports: FakePorts) -> Callable[..., Any]:
    @asynccontextmanager
    async def open_(client: ModelClient, *, pulse_s: float = 10, **given: Any) -> AsyncIterator[Inside]:
        proxy = ModelProxy(task(**{"model": client.model, **given}), ports, client, clock=SystemClock(), deadline=None, masker=Masker())
        async with UnixServer(proxy, tmp_path / "s", pulse_s=pulse_s):
            inside = Inside(tmp_path / "s", proxy)
            try:
                yield inside
            finally:
                await inside.http.aclose()
                await proxy.close()

    return open_


CHAT: list[Any] = [{"role": "system", "content": "sys"}, {"role": "user", "content": [{"type": "text", "text": "do it ü"}]}]
TOOL: dict[str, Any] = {"name": "bash", "description": "runs", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
CALLS = (("bash", '{"command": "ls ü"}'), ("bash", '{"command": "pwd"}'))


async def test_chat(serve: Any, ports: FakePorts) -> None:
    client = Scripted(lambda *_: said("text ü", *CALLS))
    async with serve(client) as inside:
        given: dict[str, Any] = {"model": "x", "messages": CHAT, "tools": [{"type": "function", "function": TOOL}], "max_tokens": 300}
        whole = await inside.openai.chat.completions.create(**given)
        assert whole.choices[0].message.content == "text ü" and whole.choices[0].finish_reason == "tool_calls"
        calls = whole.choices[0].message.tool_calls
        assert [c.function.arguments for c in calls] == [a for _, a in CALLS] and len({c.id for c in calls}) == 2
        text, arguments = "", {0: "", 1: ""}
        async for chunk in await inside.openai.chat.completions.create(**given, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for part in choice.delta.tool_calls or []:
                    arguments[part.index] += part.function.arguments
            last = chunk
        assert text == "text ü" and list(arguments.values()) == [a for _, a in CALLS]
        assert last.usage.prompt_tokens == 120 and last.usage.prompt_tokens_details.cached_tokens == 20
    messages, tools, call = client.asked[0]
    assert messages == [{"role": "system", "content": "sys"}, {"role": "user", "content": "do it ü"}]
    assert tools == [{"type": "function", "function": TOOL}] and (call.turn, call.prompt, call.agent) == (0, "do it ü", "worker:a")
    assert ports.usage.input_tokens == 240 and ports.usage.model_calls == 2 and ports.estimates[0].output_tokens == 300


async def test_responses_with_a_free_text_tool(serve: Any) -> None:
    client = Scripted(lambda m, *_: said("done") if m[-1]["role"] == "tool" else said("", CALLS[0], ("apply_patch", '{"input": "*** Begin"}')))
    tools: list[Any] = [{"type": "function", **TOOL}, {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "definition": "G"}}]
    async with serve(client) as inside:
        first = await inside.openai.responses.create(model="x", instructions="sys", input="do it", tools=tools)
        assert [i.type for i in first.output] == ["function_call", "custom_tool_call"]
        assert first.output[0].arguments == CALLS[0][1] and first.output[1].input == "*** Begin"
        history: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "do it"}]}]
        history += [i.model_dump(exclude_none=True) for i in first.output]
        history += [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "a\nb"}]
        history += [{"type": "custom_tool_call_output", "call_id": first.output[1].call_id, "output": "ok"}]
        events = [e async for e in await inside.openai.responses.create(model="x", instructions="sys", input=history, tools=tools, stream=True)]
        assert events[-1].type == "response.completed" and events[-1].response.output_text == "done"
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "done"
    messages = client.asked[1][0]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "tool"] and client.asked[1][2].turn == 1
    assert [m["tool_name"] for m in messages[3:]] == ["bash", "apply_patch"] and messages[3]["content"] == "a\nb"
    assert [t["function"]["name"] for t in client.asked[0][1]] == ["bash", "apply_patch"] and "G" in client.asked[0][1][1]["function"]["description"]


async def test_messages(serve: Any) -> None:
    client = Scripted(lambda m, *_: said("done") if any(x["role"] == "tool" for x in m) else said("hm", *CALLS))
    tools: list[Any] = [{"name": "bash", "description": "runs", "input_schema": TOOL["parameters"]}, {"type": "web_search_20250305", "name": "web_search"}]
    async with serve(client) as inside:
        given: dict[str, Any] = {"model": "x", "max_tokens": 100, "system": [{"type": "text", "text": "sys"}], "tools": tools}
        user = {"role": "user", "content": "do it"}
        async with inside.anthropic.messages.stream(**given, messages=[user]) as stream:
            first = await stream.get_final_message()
        assert first.stop_reason == "tool_use" and first.usage.input_tokens == 100 and first.usage.cache_read_input_tokens == 20
        assert [b.type for b in first.content] == ["text", "tool_use", "tool_use"] and first.content[1].input == {"command": "ls ü"}
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": f"r{i}"}]} for i, b in enumerate(first.content[1:])]
        turn = {"role": "assistant", "content": [b.model_dump() for b in first.content]}
        last = await inside.anthropic.messages.create(**given, messages=[user, turn, {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}])
        assert last.content[0].text == "done" and last.stop_reason == "end_turn"
        assert (await inside.anthropic.messages.count_tokens(model="x", messages=[user])).input_tokens > 0
    assert client.asked[0][1] == [{"type": "function", "function": TOOL}], "the provider's own tools cannot be offered to another model"
    roles = [m["role"] for m in client.asked[1][0]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"] and client.asked[1][0][3]["content"] == "r0"


async def test_a_restart_is_answered_from_the_journal(serve: Any, ports: FakePorts) -> None:
    client = Scripted(lambda *_: said("once"))
    for _ in range(2):
        async with serve(client) as inside:
            for _ in range(2):                 # the same question twice is two calls
                await inside.openai.chat.completions.create(model="x", messages=CHAT, user="another process")
    assert len(client.asked) == 2 and len(ports.performed) == 2


async def test_a_program_that_lost_patience_gets_the_answer_on_its_way(serve: Any) -> None:
    go = asyncio.Event()

    async def slow() -> ClientReply:
        await go.wait()
        return said("late")

    client = Scripted(lambda *_: slow())
    async with serve(client) as inside:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inside.openai.chat.completions.create(model="x", messages=CHAT), 0.2)
        again = asyncio.create_task(inside.openai.chat.completions.create(model="x", messages=CHAT))
        await asyncio.sleep(0)
        go.set()
        assert (await again).choices[0].message.content == "late"
    assert len(client.asked) == 1


async def test_waiting_streams_are_kept_awake(serve: Any) -> None:
    async def slow() -> ClientReply:
        await asyncio.sleep(0.2)
        return said("late")

    async with serve(Scripted(lambda *_: slow()), pulse_s=0.03) as inside:
        body = {"model": "x", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        answer = await inside.http.post("/v1/messages", json=body, timeout=0.1)
        assert answer.text.count("event: ping") >= 3 and "late" in answer.text
        text = "".join([c.choices[0].delta.content or "" async for c in await inside.openai.chat.completions.create(model="x", messages=CHAT, stream=True) if c.choices])
        assert text == "late"


async def test_a_spent_budget_ends_the_agent(serve: Any, ports: FakePorts) -> None:
    import openai

    ports.max_calls = 1
    async with serve(Scripted(lambda *_: said("x"))) as inside:
        await inside.openai.chat.completions.create(model="x", messages=CHAT)
        for _ in range(2):
            with pytest.raises(openai.APIStatusError) as caught:
                await inside.openai.chat.completions.create(model="x", messages=CHAT)
            assert caught.value.status_code == 402 and "the account is spent" in caught.value.message
        assert isinstance(inside.proxy.ended.result(), BudgetExhausted)


async def test_turns_and_signals_end_it_too(serve: Any, ports: FakePorts) -> None:
    import anthropic

    question: dict[str, Any] = {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    async with serve(Scripted(lambda *_: said("x")), limits=AgentLimits(max_turns=1)) as inside:
        await inside.anthropic.messages.create(**question)
        with pytest.raises(anthropic.APIStatusError, match="used all 1 model calls"):
            await inside.anthropic.messages.create(**question)
        assert isinstance(inside.proxy.ended.result(), TurnsExhausted)

    async def drained(**_: Any) -> Any:
        raise Drained("stop")

    ports.model_call = drained  # type: ignore[method-assign]
    async with serve(Scripted(lambda *_: said("x"))) as inside:
        with pytest.raises(anthropic.APIStatusError):
            await inside.anthropic.messages.create(**question)
        assert isinstance(inside.proxy.ended.result(), Drained)


async def test_an_overflow_is_the_programs_to_mend(serve: Any) -> None:
    import openai

    async with serve(Scripted(lambda *_: ProviderFailure("context", "too long", status=400))) as inside:
        with pytest.raises(openai.BadRequestError) as caught:
            await inside.openai.chat.completions.create(model="x", messages=CHAT)
        assert caught.value.code == "context_length_exceeded" and not inside.proxy.ended.done()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{nope", 400),
        ("/v1/messages", b"[" * 100_000, 400),
        ("/v1/responses", b'"text"', 200),
        ("/v1/chat/completions", json.dumps({"messages": [None, 3, {"role": "tool"}, {"role": 7, "content": {"a": 1}, "tool_calls": ["x", {"function": 3}]}], "tools": "x"}).encode(), 200),
        ("/v1/embeddings", b"{}", 404),
    ],
)
async def test_junk_breaks_nothing(serve: Any, path: str, body: bytes, status: int) -> None:
    async with serve(Scripted(lambda *_: said("x"))) as inside:
        assert (await inside.http.post(path, content=body)).status_code == status
        assert (await inside.http.get("/v1/models")).json()["data"][0]["id"] == "scripted"


async def test_broken_http_is_refused(serve: Any, tmp_path: Path) -> None:
    async with serve(Scripted(lambda *_: said("x"))) as inside:
        for sent in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(sent)
            writer.write_eof()
            assert not (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        assert (await inside.http.get("/v1/models")).status_code == 200


# ---- a provider behind it ------------------------------------------------------------------------

PASSED: dict[str, Any] = {"anthropic": "anthropic", "chat": "openai-chat", "responses": "openai-responses"}


@pytest.mark.parametrize("program", PASSED)
async def test_a_provider_of_the_same_language_gets_the_request_as_it_is(serve: Any, ports: FakePorts, key: str, program: str) -> None:
    answers = [Failure(status=529, retry_after="0"), Truncated(reply=Reply(text="cut")), Reply(text="whole", thinking="deep", calls=(Call("bash", {"command": "ls"}),), cached_tokens=10)]
    async with ProviderServer(lambda r: answers[min(r.number, 2)], keys={key}) as server:
        table = {"base_url": server.base_url(PASSED[program]), "api": PASSED[program], "api_key_env": "TEST_KEY"}
        models = ModelsConfig({"own": table})
        async with serve(models.client("own/real-id"), pulse_s=0.05) as inside:
            if program == "anthropic":
                async with inside.anthropic.messages.stream(
                    model="x", max_tokens=9999, messages=[{"role": "user", "content": "hi"}], extra_body={"thinking": {"type": "enabled", "budget_tokens": 1024}}
                ) as stream:
                    message = await stream.get_final_message()
                assert [b.type for b in message.content] == ["thinking", "text", "tool_use"], "nothing is lost in translation"
            elif program == "chat":
                parts = [c async for c in await inside.openai.chat.completions.create(model="x", messages=CHAT, stream=True, logprobs=True) if c.choices]
                assert "".join(p.choices[0].delta.content or "" for p in parts) == "whole"
            else:
                events = [e async for e in await inside.openai.responses.create(model="x", input="hi", stream=True, reasoning={"effort": "low"})]
                assert events[-1].response.output_text == "whole"
        sent = server.requests[-1]
        assert len(server.requests) == 3 and sent.model == "real-id" and sent.key == key and "dummy" not in str(sent.headers)
        extra = {"anthropic": "thinking", "chat": "logprobs", "responses": "reasoning"}[program]
        assert extra in sent.body and 500 in sent.body.values(), "its own fields pass, the length is held to the limit"
        assert ports.usage.input_tokens == 1000 and ports.usage.cached_tokens == 10 and len(ports.performed) == 1
        assert [e["attempt"] for e in ports.events if e["type"] == "model.failed"] == [0, 1]
        assert all(key not in json.dumps(reply.response) for reply in ports.journal.values())


async def test_another_language_is_translated(serve: Any, key: str) -> None:
    async with ProviderServer(lambda r: Reply(text="hello", calls=(Call("bash", {"command": "ls"}),))) as server:
        models = ModelsConfig({"own": {"base_url": server.base_url("openai-chat"), "api_key_env": "TEST_KEY"}})
        question: dict[str, Any] = {"model": "x", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
        async with serve(models.client("own/m")) as inside, inside.anthropic.messages.stream(**question) as stream:
            message = await stream.get_final_message()
        await models.close()
        assert [b.type for b in message.content] == ["text", "tool_use"] and server.requests[0].wire == "openai-chat"


async def test_a_rejected_key_ends_the_agent_without_showing_it(serve: Any, key: str) -> None:
    import openai

    async with ProviderServer(lambda r: Reply(), keys={"another"}) as server:
        models = ModelsConfig({"own": {"base_url": server.base_url("openai-chat"), "api_key_env": "TEST_KEY"}})
        async with serve(models.client("own/m")) as inside:
            with pytest.raises(openai.AuthenticationError) as caught:
                await inside.openai.chat.completions.create(model="x", messages=CHAT, stream=True)
            assert key not in str(caught.value) and isinstance(inside.proxy.ended.result(), ProviderRejected)
