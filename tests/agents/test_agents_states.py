"""``state_read`` and ``state_edit``, and the gate at an agent's end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents_kit import DONE, ListClient, run, say, tool_results

from capataz.contracts.errors import OutputInvalid
from capataz.contracts.harness import StateGrant
from capataz.testing.fake_ports import FakePorts

GRANT = StateGrant(name="board", schema={"type": "object", "properties": {"n": {"type": "integer"}}}, writes=True, owns=True)
BOTH: dict[str, Any] = {"granted": ("state_read", "state_edit"), "states": (GRANT,)}


async def test_an_agent_reads_and_edits_a_state() -> None:
    ports = FakePorts(states={"board": [{"n": 1, "who": "ana"}]})
    client = ListClient(
        ("state_read", {"name": "board"}),
        ("state_edit", {"name": "board", "patch": {"n": 2}, "version": 1}),
        ("state_edit", {"name": "board", "patch": {"n": 3}, "version": 1}),
        ("state_read", {"name": "other"}),
        DONE,
    )
    await run(client, ports, **BOTH)
    first, second, outdated, unknown = tool_results(client.requests[-1])
    assert json.loads(first) == {"version": 1, "value": {"n": 1, "who": "ana"}}
    assert json.loads(second) == {"version": 2, "value": {"n": 2, "who": "ana"}}
    assert outdated == "error: state board is at version 2, not 1; nothing was stored"
    assert unknown == "error: there is no state other"
    assert len(ports.states["board"]) == 2


async def test_a_refused_edit_is_data_for_the_model() -> None:
    ports = FakePorts(states={"board": []}, refuse_edit=lambda patch: "state board: n may not go from 0 to 9")
    client = ListClient(("state_edit", {"name": "board", "patch": {"n": 9}, "version": 0}), DONE)
    await run(client, ports, **BOTH)
    assert tool_results(client.requests[1]) == ["error: state board: n may not go from 0 to 9; nothing was stored"]
    assert ports.states["board"] == []


async def test_states_are_told_and_their_tools_granted_in_spite_of_a_narrow_list() -> None:
    client = ListClient(DONE)
    await run(client, FakePorts(), tools=("read_file",), **BOTH)
    assert client.tools[0] == ["read_file", "state_read", "state_edit", "submit"]
    first = client.requests[0][-1]["content"]
    assert "board: you may read and edit it, and you must leave it complete" in first and '"integer"' in first
    client = ListClient(DONE)
    await run(client, FakePorts(), granted=("state_read",), states=(StateGrant(name="b", schema={}, writes=False, owns=False),))
    assert "state_edit" not in client.tools[0] and "- b: you may read it." in client.requests[0][-1]["content"]


async def test_the_end_of_a_text_agent_can_be_refused_too() -> None:
    said: list[Any] = []

    def gate(value: Any) -> str | None:
        said.append(value)
        return "state board is not complete" if len(said) < 3 else None

    client = ListClient(say("first"), say("second"), say("third"))
    outcome = await run(client, FakePorts(accept_=gate), output_schema=None, **BOTH)
    assert (outcome.text, said) == ("third", ["first", "second", "third"])
    assert client.requests[1][-2:] == [{"role": "assistant", "content": "first"}, {"role": "user", "content": "error: state board is not complete"}]
    with pytest.raises(OutputInvalid, match="not complete"):
        await run(ListClient(say("again")), FakePorts(accept_=lambda value: "not complete"), output_schema=None)
