"""Each wire against a real server on loopback: what a reply holds and what a failure is."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from capataz.agents.model_client import ProviderFailure
from capataz.agents.providers.endpoint import Api
from capataz.contracts.errors import ProviderRejected
from capataz.testing.provider_server import (
    Answer,
    Call,
    Failure,
    ProviderRequest,
    ProviderServer,
    RawAnswer,
    Reply,
    Reset,
    Stall,
    Truncated,
)


def always(answer: Answer) -> Any:
    return lambda request: answer


async def failure(asked: Any, wire: Api, answer: Answer, **kw: Any) -> ProviderFailure:
    async with ProviderServer(always(answer)) as server:
        ask = asked(server, wire, **kw)
        with pytest.raises(ProviderFailure) as caught:
            await ask()
        await ask.client.close()
        assert len(server.requests) == 1 and not server.errors, "the SDK must not try again by itself"
        return caught.value


async def test_text_tools_and_usage(asked: Any, wire: Api, key: str) -> None:
    calls = (Call("write_file", {"path": "ä.py", "content": 'x = "y"\n' * 20}), Call("read_file", {}))
    answer = Reply(text="Grüße wörld 🙂", calls=calls, input_tokens=1200, cached_tokens=200, output_tokens=34)
    async with ProviderServer(always(answer), chop=7) as server:
        ask = asked(server, wire)
        reply = await ask()
        await ask.client.close()
    assert reply.message["role"] == "assistant" and reply.message["content"] == "Grüße wörld 🙂"
    functions = [c["function"] for c in reply.message["tool_calls"]]
    assert [f["name"] for f in functions] == ["write_file", "read_file"]
    assert json.loads(functions[0]["arguments"]) == calls[0].arguments and json.loads(functions[1]["arguments"] or "{}") == {}
    assert len({c["id"] for c in reply.message["tool_calls"]}) == 2 and reply.finish == "tool_calls"
    assert (reply.usage.input_tokens, reply.usage.cached_tokens, reply.usage.output_tokens) == (1200, 200, 34)
    sent = server.requests[0]
    assert sent.stream and sent.key == key and sent.model == "m1" and sent.tools == ["write_file"]
    assert "be short" in sent.text and "Grüße 🙂" in sent.text and "500" in sent.text
    json.dumps(reply.message)


async def test_plain_text_and_length(asked: Any, wire: Api) -> None:
    async with ProviderServer(always(Reply(text="half", finish="length"))) as server:
        reply = await asked(server, wire)(tools=[])
    assert reply.message == {"role": "assistant", "content": "half"} and reply.finish == "length"
    assert server.requests[0].tools == []


async def test_an_empty_answer_is_an_answer(asked: Any, wire: Api) -> None:
    async with ProviderServer(always(Reply())) as server:
        reply = await asked(server, wire)()
    assert reply.message == {"role": "assistant", "content": ""} and reply.finish == "stop"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 429, 500, 503, 529])
async def test_http_errors_keep_status_and_message(asked: Any, wire: Api, status: int) -> None:
    error = await failure(asked, wire, Failure(status=status, message="what went wrong", retry_after="7"))
    assert (error.kind, error.status, error.retry_after_s) == ("http", status, 7.0)
    assert "what went wrong" in error.message


async def test_retry_after_as_a_date(asked: Any, wire: Api) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    error = await failure(asked, wire, Failure(status=429, retry_after=at))
    assert error.retry_after_s is not None and 85 <= error.retry_after_s <= 90


@pytest.mark.parametrize("text", ["soon", "-5", "99999999999999999999999999999999999d", ""])
async def test_a_senseless_retry_after_is_ignored(asked: Any, wire: Api, text: str) -> None:
    assert (await failure(asked, wire, Failure(status=429, retry_after=text))).retry_after_s is None


async def test_an_error_page_that_is_no_json(asked: Any, wire: Api) -> None:
    error = await failure(asked, wire, Failure(status=502, body=b"<html>Bad gateway</html>"))
    assert (error.kind, error.status) == ("http", 502)


@pytest.mark.parametrize("events", [0, 3])
async def test_reset(asked: Any, wire: Api, events: int) -> None:
    error = await failure(asked, wire, Reset(reply=Reply(text="a longer text that is cut"), events=events))
    assert error.kind == "reset"


@pytest.mark.parametrize("events", [0, 3])
async def test_stall(asked: Any, wire: Api, events: int) -> None:
    error = await failure(asked, wire, Stall(reply=Reply(text="a longer text that is cut"), events=events), stall_s=0.2)
    assert error.kind == "stall"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("events", [0, 2, 4])
async def test_truncated(asked: Any, wire: Api, clean: bool, events: int) -> None:
    reply = Reply(text="a longer text that is cut", calls=(Call("write_file", {"path": "a"}),))
    error = await failure(asked, wire, Truncated(reply=reply, events=events, clean=clean))
    assert error.kind == "truncated"


@pytest.mark.parametrize("body", [b"data: {not json\n\n", b"data: [1, 2]\n\n", b"data: {}\n\n", b"event: x\ndata: null\n\n", b"\xff\xfe\n\n"])
async def test_malformed_events(asked: Any, wire: Api, body: bytes) -> None:
    error = await failure(asked, wire, RawAnswer(body=body, content_type="text/event-stream"))
    assert error.kind == "truncated", error.message


OVERFLOWS: dict[str, list[Failure]] = {
    "openai-chat": [
        Failure(status=400, code="context_length_exceeded", message="too much"),
        Failure(status=400, message="This model's maximum context length is 8192 tokens"),
        Failure(status=400, message="the request exceeds the available context size, try increasing it"),
    ],
    "openai-responses": [Failure(status=400, code="context_length_exceeded", message="Your input exceeds the context window of this model.")],
    "anthropic": [Failure(status=400, message="prompt is too long: 210000 tokens > 200000 maximum"), Failure(status=413, message="Request too large")],
    "google": [Failure(status=400, message="The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")],
}


async def test_context_overflow_is_a_kind_of_its_own(asked: Any, wire: Api) -> None:
    for answer in OVERFLOWS[wire]:
        assert (await failure(asked, wire, answer)).kind == "context", answer


async def test_a_spent_quota_is_not_waited_for(asked: Any) -> None:
    error = await failure(asked, "openai-chat", Failure(status=429, code="insufficient_quota", message="You exceeded your current quota"))
    assert error.status == 402


async def test_errors_inside_a_stream(asked: Any) -> None:
    said: dict[str, bytes] = {
        "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n',
        "openai-chat": b'data: {"error": {"message": "Overloaded", "type": "server_error", "code": 503}}\n\n',
        "openai-responses": b'event: response.failed\ndata: {"type": "response.failed", "response": {"id": "r", "error": {"code": "server_error", "message": "Overloaded"}}}\n\n',
        "google": b'data: {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}\n\n',
    }
    wanted = {"anthropic": 529, "openai-chat": 503, "openai-responses": 500, "google": 503}
    for wire, body in said.items():
        error = await failure(asked, wire, RawAnswer(body=body, content_type="text/event-stream"))  # type: ignore[arg-type]
        assert (error.kind, error.status, error.message) == ("http", wanted[wire], "Overloaded"), wire


async def test_the_key_shows_in_no_message(asked: Any, wire: Api, key: str) -> None:
    error = await failure(asked, wire, Failure(status=401, message=f"Incorrect API key provided: {key}, see docs"))
    assert key not in error.message and "[secret]" in error.message


async def test_a_missing_key_names_the_variable(asked: Any, wire: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY")
    async with ProviderServer(always(Reply())) as server:
        with pytest.raises(ProviderRejected, match="set TEST_KEY"):
            await asked(server, wire)()
        assert not server.requests


async def test_a_cancelled_call_ends_its_request(asked: Any, wire: Api) -> None:
    arrived = asyncio.Event()

    def respond(_: ProviderRequest) -> Answer:
        arrived.set()
        return Stall(events=2)

    async with ProviderServer(respond) as server:
        ask = asked(server, wire, stall_s=30.0)
        task = asyncio.create_task(ask())
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ask.client.close()


async def test_a_keepalive_is_no_stall(asked: Any) -> None:
    """Comments and pings are bytes: a model that thinks for long is not silent."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for _ in range(8):
            writer.write(b": still thinking\n\n")
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(b'data: {"choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
        await writer.drain()
        writer.close()

    async with ProviderServer(always(Reply())) as unused, await asyncio.start_server(slow, "127.0.0.1", 0) as server:
        ask = asked(unused, "openai-chat", stall_s=0.4, base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        reply = await ask()
        await ask.client.close()
    assert reply.message["content"] == "done"
    assert reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0, "an answer without usage is estimated, not free"
