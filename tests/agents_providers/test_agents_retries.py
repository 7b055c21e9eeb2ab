from __future__ import annotations

from typing import Any

import pytest

from capataz.agents.model_client import CallInfo, ClientReply, ProviderFailure
from capataz.agents.retries import MAX_RETRIES, PROVIDER, reply_with_retries
from capataz.contracts.errors import ProviderRejected, ProviderUnavailable, ScriptError
from capataz.contracts.journal import Usage


class Skipping:
    def __init__(self) -> None:
        self.at = 1000.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds


class Failing:
    """Raises what it is given, one a call, then answers."""

    window_tokens = 0

    def __init__(self, *errors: Exception, model: str = "openai/m") -> None:
        self.model = model
        self.errors = list(errors)
        self.attempts: list[int] = []

    async def reply(self, *, call: CallInfo, **_: Any) -> ClientReply:
        self.attempts.append(call.attempt)
        if self.errors:
            raise self.errors.pop(0)
        return ClientReply(message={"role": "assistant", "content": "ok"}, usage=Usage())


async def ask(client: Failing, clock: Skipping, *, deadline: float | None = None, agent: str = "a") -> tuple[ClientReply, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    call = CallInfo(agent=agent, turn=3, run_id="r", data=None, prompt="p")
    client.events = events  # type: ignore[attr-defined]
    reply = await reply_with_retries(
        client, messages=[], tools=[], output_schema=None, max_output_tokens=10, call=call,
        emit=lambda type, **data: events.append({"type": type, **data}), clock=clock, deadline=deadline,
    )  # fmt: skip
    return reply, events


def http(status: int, **kw: Any) -> ProviderFailure:
    return ProviderFailure("http", f"status {status}", status=status, **kw)


async def test_what_may_pass_is_tried_again_with_growing_waits() -> None:
    client, clock = Failing(http(500), http(529), ProviderFailure("stall", "s"), ProviderFailure("reset", "r"), ProviderFailure("truncated", "t")), Skipping()
    reply, events = await ask(client, clock)
    assert reply.message["content"] == "ok"
    assert client.attempts == [0, 1, 2, 3, 4, 5]
    assert [e["attempt"] for e in events] == [0, 1, 2, 3, 4] and all(e["type"] == "model.failed" and e["turn"] == 3 for e in events)
    for n, wait in enumerate(clock.waits):
        assert 0.5 * 2**n <= wait <= 2**n
    assert [e["retry_in_s"] for e in events] == [round(w, 3) for w in clock.waits]


async def test_it_gives_up_after_five_retries() -> None:
    client, clock = Failing(*[http(503)] * 20), Skipping()
    with pytest.raises(ProviderUnavailable) as caught:
        await ask(client, clock)
    assert client.attempts == list(range(MAX_RETRIES + 1)) and caught.value.attempts == MAX_RETRIES + 1
    assert "openai/m answered 503" in str(caught.value) and caught.value.details["status"] == 503
    assert client.events[-1]["retry_in_s"] is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 402])
async def test_what_no_retry_mends_is_rejected_at_once(status: int) -> None:
    client, clock = Failing(http(status)), Skipping()
    with pytest.raises(ProviderRejected, match=f"answered {status}"):
        await ask(client, clock)
    assert client.attempts == [0] and clock.waits == []
    assert client.events[0]["code"] == "provider_rejected"  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_retried_statuses(status: int) -> None:
    client = Failing(http(status))
    await ask(client, Skipping())
    assert client.attempts == [0, 1]


async def test_retry_after_replaces_the_backoff() -> None:
    clock = Skipping()
    await ask(Failing(http(429, retry_after_s=7.5), http(429, retry_after_s=0)), clock)
    assert clock.waits == [7.5, 0.0]


async def test_a_retry_after_of_an_hour_is_not_waited_for() -> None:
    clock = Skipping()
    with pytest.raises(ProviderUnavailable, match="asks to wait 3600 s"):
        await ask(Failing(http(429, retry_after_s=3600)), clock)
    assert clock.waits == []


async def test_no_wait_passes_the_deadline() -> None:
    clock = Skipping()
    with pytest.raises(ProviderUnavailable, match="no time is left"):
        await ask(Failing(*[http(500)] * 9), clock, deadline=1003.0)
    assert clock.now() < 1003.0


async def test_jitter_is_the_same_for_the_same_call_and_differs_between_agents() -> None:
    waits: list[list[float]] = []
    for agent in ("a", "a", "b"):
        clock = Skipping()
        await ask(Failing(http(500), http(500)), clock, agent=agent)
        waits.append(clock.waits)
    assert waits[0] == waits[1] != waits[2]
    assert PROVIDER.delay(50, "x") <= PROVIDER.most_s


async def test_scripted_failures_wait_shortly() -> None:
    clock = Skipping()
    await ask(Failing(http(429, retry_after_s=1), *[http(500)] * 4, model="scripted:x.py"), clock)
    assert clock.waits[0] == 1 and sum(clock.waits[1:]) < 3
    clock = Skipping()
    await ask(Failing(http(429, retry_after_s=3600), model="scripted:x.py"), clock)
    assert clock.waits == [5.0]


async def test_context_and_our_own_errors_pass_through() -> None:
    for error in (ProviderFailure("context", "too long", status=400), ScriptError("boom")):
        client = Failing(error)
        with pytest.raises(type(error)) as caught:
            await ask(client, Skipping())
        assert caught.value is error and client.attempts == [0]


async def test_messages_are_one_line_and_hold_no_key() -> None:
    client = Failing(ProviderFailure("http", "bad\n key sk-abcdefghijklmnop here", status=401))
    with pytest.raises(ProviderRejected) as caught:
        await ask(client, Skipping())
    assert "sk-abc" not in str(caught.value) and "\n" not in str(caught.value)
    assert "sk-abc" not in str(client.events)  # type: ignore[attr-defined]
