"""Compaction: references, one summary, then the end. And the repair of histories."""

from __future__ import annotations

from typing import Any

import pytest
from agents_kit import DONE, ListClient, calls, is_well_formed, run, say
from hypothesis import given
from hypothesis import strategies as st

from capataz.agents import compaction, history
from capataz.agents.model_client import ProviderFailure
from capataz.contracts.errors import ContextOverflow
from capataz.contracts.harness import AgentLimits, ToolReply
from capataz.testing.fake_ports import FakePorts

LIMITS = AgentLimits(max_turns=40, max_output_tokens=100)


class Talkative(FakePorts):
    """Every tool answers at length."""

    async def tool_call(self, **kwargs: Any) -> ToolReply:
        return ToolReply(content=f"{kwargs['turn']} " + "words " * 1_000)


def progress(i: int) -> dict[str, Any]:
    return calls(("report_progress", {"message": str(i)}))


def is_summary(messages: list[dict[str, Any]]) -> bool:
    return len(messages) == 1 and "has to be shortened" in messages[0]["content"]


async def test_references_keep_a_long_conversation_inside_the_window() -> None:
    client = ListClient(*[progress(i) for i in range(12)], DONE, window_tokens=12_000)
    await run(client, Talkative(), limits=LIMITS)
    assert not any(is_summary(r) for r in client.requests)
    assert all(history.size(r) / 3 < 12_000 for r in client.requests)
    last = client.requests[-1]
    assert "left out to save space" in last[3]["content"] and "words words" in last[-1]["content"]
    assert all(is_well_formed(r) for r in client.requests)


async def test_summary_when_references_do_not_help() -> None:
    long = {**progress(0), "content": "thinking " * 700}

    def answer(messages: list[dict[str, Any]], info: Any) -> dict[str, Any]:
        if is_summary(messages):
            return say("SUMMARY of what was done")
        return long if info.turn < 8 else calls(DONE)

    client = ListClient(answer, window_tokens=14_000)
    outcome = await run(client, limits=LIMITS)
    assert sum(is_summary(r) for r in client.requests) == 1
    after = client.requests[[is_summary(r) for r in client.requests].index(True) + 1]
    assert [m["role"] for m in after[:3]] == ["system", "user", "user"] and "SUMMARY of what was done" in after[2]["content"]
    assert all(is_well_formed(r) for r in client.requests) and outcome.turns == 9


async def test_the_second_need_of_a_summary_ends_the_agent() -> None:
    def answer(messages: list[dict[str, Any]], info: Any) -> dict[str, Any]:
        return say("short") if is_summary(messages) else {**progress(info.turn), "content": "thinking " * 1_200}

    client = ListClient(answer, window_tokens=14_000)
    with pytest.raises(ContextOverflow):
        await run(client, limits=LIMITS)
    assert sum(is_summary(r) for r in client.requests) == 1 and len(client.requests) < 12


async def test_the_providers_refusal_is_answered_once() -> None:
    def answer(messages: list[dict[str, Any]], info: Any) -> dict[str, Any]:
        if is_summary(messages):
            return say("s")
        if info.turn == 2 and "Facts so far" not in str(messages) and len(messages) > 5:
            raise ProviderFailure("context", "too long", status=400)
        return progress(info.turn) if info.turn < 3 else calls(DONE)

    client = ListClient(answer)
    outcome = await run(client, limits=LIMITS)
    assert sum(is_summary(r) for r in client.requests) == 1 and outcome.turns == 4


async def test_a_window_that_is_always_too_small_ends() -> None:
    client = ListClient(ProviderFailure("context", "too long", status=400))
    with pytest.raises(ContextOverflow):
        await run(client)
    assert len(client.requests) <= 3


MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda t: {"role": "user", "content": t}, st.text(max_size=3)),
        st.builds(lambda i: {"role": "tool", "tool_call_id": i, "tool_name": "t", "content": "r"}, st.sampled_from("abcd")),
        st.builds(
            lambda ids: {"role": "assistant", "content": "", "tool_calls": [{"id": i, "type": "function", "function": {"name": "t", "arguments": "{}"}} for i in ids]},
            st.lists(st.sampled_from("abcd"), max_size=3, unique=True),
        ),
    ),
    max_size=12,
)


@given(MESSAGES)
def test_repair_answers_every_request_and_nothing_else(messages: list[dict[str, Any]]) -> None:
    fixed = history.repaired(messages)
    assert history.repaired(fixed) == fixed
    asked: list[str] = []
    for message in fixed:
        if message["role"] == "tool":
            assert message["tool_call_id"] == asked.pop(0)
        else:
            assert not asked
            asked = [c["id"] for c in message.get("tool_calls") or []]
    assert not asked
    assert [m for m in fixed if m["role"] != "tool"] == [m for m in messages if m["role"] != "tool"]


@given(MESSAGES)
def test_summaries_and_references_stay_well_formed(messages: list[dict[str, Any]]) -> None:
    whole = history.repaired([{"role": "system", "content": "s"}, {"role": "user", "content": "p"}, *messages])
    for shorter in (history.repaired(compaction.with_references(whole)), compaction.summarised(whole, "sum")):
        assert history.repaired(shorter) == shorter
        assert shorter[:2] == whole[:2]
