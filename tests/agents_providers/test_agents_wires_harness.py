"""Whole conversations over real wire formats: what a provider does wrong does not poison them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capataz.agents.harness import AgnoHarness
from capataz.agents.providers.endpoint import Api
from capataz.contracts.clock import SystemClock
from capataz.contracts.harness import AgentLimits, AgentTask
from capataz.contracts.records import WorkerOutput
from capataz.testing.fake_ports import FakePorts
from capataz.testing.fake_session import FakeSession
from capataz.testing.provider_server import Call, Failure, ProviderRequest, ProviderServer, Reply, Reset


class NoWait(SystemClock):
    async def sleep(self, seconds: float) -> None:
        pass


def answers(bad: Any) -> list[Any]:
    return [
        Reply(calls=(Call("run_command", {"command": "echo AAA"}, id="same"), Call("run_command", {"command": "echo BBB"}, id="same")), thinking="let me see"),
        Failure(status=429, retry_after="0"),
        Reply(calls=(Call("report_progress", bad, id="same"), Call("nowhere", {}))),
        Reset(),
        Reply(),
        Reply(text="I am done."),
        Reply(calls=(Call("submit", {"status": "completed", "summary": "fine"}, id="same"),)),
    ]


async def test_a_rough_conversation(asked: Any, wire: Api, tmp_path: Path) -> None:
    # Google reads the model's text itself and sends objects only: there the mistake is a missing argument.
    left = answers({} if wire == "google" else "{bad json")

    def respond(request: ProviderRequest) -> Any:
        return left.pop(0)

    async with ProviderServer(respond) as server:
        client = asked(server, wire).client
        task = AgentTask(
            run_id="r", key="k", name="a", type="general", prompt="Do it.", data={"x": 1}, model="test/m1",
            output_schema=WorkerOutput.model_json_schema(), tools=None, limits=AgentLimits(),
        )
        outcome = await AgnoHarness(lambda model: client, NoWait()).run(task, FakePorts(session_=FakeSession(tmp_path)))
        await client.close()
    assert not server.errors
    assert outcome.output == {"status": "completed", "summary": "fine"} and outcome.turns == 5
    last = json.dumps(server.requests[-1].body)
    assert last.index("AAA") < last.index("BBB")
    assert any(said in last for said in ("no valid JSON", "must be one JSON object", "message is missing"))
    assert "no tool nowhere" in last and "only reminder" in last
    ids = [c["id"] for m in outcome.messages for c in m.get("tool_calls") or []]
    assert len(ids) == len(set(ids)) == 5
