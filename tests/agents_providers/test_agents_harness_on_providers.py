"""The default harness on every provider's wire: what goes wrong on the way and what the model gets wrong, in one conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_ports import FakePorts, task

from capataz.agents.harness import AgnoHarness
from capataz.agents.models import ModelsConfig
from capataz.agents.providers.endpoint import Api
from capataz.contracts.errors import ContextOverflow, ProviderRejected
from capataz.testing.provider_server import Answer, Call, Failure, ProviderServer, Reply, Reset, Stall, Truncated

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
ENDED = Call("submit", {"ok": True}, id="same")


async def converse(wire: Api, *answers: Answer) -> tuple[Any, FakePorts, ProviderServer]:
    ports = FakePorts()
    async with ProviderServer(lambda r: answers[min(r.number, len(answers) - 1)]) as server:
        models = ModelsConfig({"own": {"base_url": server.base_url(wire), "api": wire, "api_key_env": "TEST_KEY", "stall": "300ms"}})
        try:
            outcome = await AgnoHarness(models.client).run(task(type="reason", model="own/m", output_schema=SCHEMA), ports)
        finally:
            await models.close()
        return outcome, ports, server


async def test_what_the_network_does_is_survived(wire: Api) -> None:
    again = {"retry_after": "0"}
    outcome, ports, server = await converse(
        wire, Failure(status=429, **again), Failure(status=500, **again), Failure(status=529, **again), Reply(calls=(ENDED,))
    )
    assert outcome.output == {"ok": True} and len(server.requests) == 4
    failed = [e for e in ports.events if e["type"] == "model.failed"]
    assert [e["attempt"] for e in failed] == [0, 1, 2] and ports.usage.model_calls == 1, "failed attempts are one call"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Reset(events=2), Stall(events=1), Truncated(reply=Reply(text="half of an answer"), events=3)])
async def test_broken_streams_recover(wire: Api, broken: Answer) -> None:
    outcome, _, server = await converse(wire, broken, Reply(calls=(ENDED,)))
    assert outcome.output == {"ok": True} and len(server.requests) == 2


async def test_what_the_model_gets_wrong_does_not_poison_the_conversation(wire: Api) -> None:
    wrong = "{not json" if wire != "google" else {"ok": "maybe"}
    twice = (Call("nothing_like_it", {}, id="same"), Call("submit", wrong, id="same"))
    outcome, _, server = await converse(wire, Reply(calls=twice), Reply(), Reply(calls=(ENDED,)))
    assert outcome.output == {"ok": True} and len(server.requests) == 3
    json.dumps(outcome.messages)


async def test_a_refused_key_stops_at_once(wire: Api, key: str) -> None:
    with pytest.raises(ProviderRejected, match="answered 401: bad key") as caught:
        await converse(wire, Failure(status=401, message=f"bad key {key}"))
    assert key not in str(caught.value) and "\n" not in str(caught.value)


async def test_a_context_that_stays_too_long_ends_the_agent(wire: Api) -> None:
    messages = {"google": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}
    with pytest.raises(ContextOverflow):
        await converse(wire, Failure(status=400, message=messages.get(wire, "prompt is too long: maximum context length")))
