"""What a model got wrong, or a crash cut off, must not make the next request fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capataz.agents.model_client import ProviderFailure
from capataz.agents.providers.conversation import LOST, repaired
from capataz.agents.providers.endpoint import Api
from capataz.agents.providers.google_contents import ContentsReader
from capataz.testing.provider_server import Call, ProviderRequest, ProviderServer, Reply


def call(id: Any, name: Any = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], content: Any = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(id: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "tool_name": "f", "content": content}


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [c["id"] for m in messages for c in m.get("tool_calls") or []]


def test_repeated_and_missing_ids_become_unique_and_keep_their_results() -> None:
    made = repaired([assistant(call("x"), call("x"), call(None)), result("x", "1"), result("x", "2"), result(None, "3"), assistant(call("x")), result("x", "4")])
    assert len(set(ids(made))) == 4
    answers = {m["tool_call_id"]: m["content"] for m in made if m["role"] == "tool"}
    assert [answers[i] for i in ids(made)] == ["1", "2", "3", "4"]


def test_results_out_of_order_find_their_calls() -> None:
    made = repaired([assistant(call("a"), call("b")), result("b", "B"), result("a", "A")])
    assert [m["content"] for m in made if m["role"] == "tool"] == ["A", "B"]


def test_a_lost_result_is_said_and_an_orphan_is_no_tool_message() -> None:
    made = repaired([result("gone", "old"), assistant(call("a"), call("b")), result("a", "A"), {"role": "user", "content": "go on"}])
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "tool", "user"]
    assert made[3]["content"] == LOST and "old" in made[0]["content"]


def test_bad_arguments_and_names_stay_visible_and_are_sendable() -> None:
    made = repaired([assistant(call("a", "functions.run it", '{"path": "x'), call("b", "", "[1]"), call("c", "ok", ""), call("d", "ok", '"\ud800"')), ])
    calls = made[0]["tool_calls"]
    assert [c["function"]["name"] for c in calls] == ["functions_run_it", "unknown", "ok", "ok"]
    objects = [json.loads(c["function"]["arguments"]) for c in calls]
    assert objects[0] == {"invalid_arguments": '{"path": "x'} and objects[1] == {"invalid_arguments": "[1]"} and objects[2] == {}
    json.dumps(made, ensure_ascii=False).encode("utf-8")


def test_the_given_conversation_is_not_touched() -> None:
    given_ = [assistant(call("x"), call("x")), result("x", "1")]
    before = json.dumps(given_)
    repaired(given_)
    assert json.dumps(given_) == before


MESSAGE = st.one_of(
    st.builds(lambda t: {"role": "user", "content": t}, st.text(max_size=5)),
    st.builds(lambda i, c: {"role": "tool", "tool_call_id": i, "tool_name": "f", "content": c}, st.sampled_from(["a", "b", "", None]), st.text(max_size=5)),
    st.builds(
        lambda cs, t: {"role": "assistant", "content": t, "tool_calls": [call(*c) for c in cs]},
        st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.text(max_size=5), st.one_of(st.text(max_size=8), st.just('{"x": 1}'), st.none())), max_size=4),
        st.one_of(st.none(), st.text(max_size=5)),
    ),
)


@given(st.lists(MESSAGE, max_size=8))
def test_every_call_is_answered_right_after_it_once(messages: list[dict[str, Any]]) -> None:
    made = repaired(messages)
    assert len(ids(made)) == len(set(ids(made)))
    open_: list[str] = []
    for message in made:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_.pop(0)
        else:
            assert not open_
            open_ = [c["id"] for c in message.get("tool_calls") or []]
            for c in message.get("tool_calls") or []:
                assert isinstance(json.loads(c["function"]["arguments"]), dict) and c["function"]["name"]
    assert not open_
    json.dumps(made, ensure_ascii=False).encode("utf-8")


# ---- over the wire -------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic"])
async def test_malformed_arguments_reach_the_harness_and_do_not_poison_the_next_request(asked: Any, wire: Api) -> None:
    answers = [Reply(calls=(Call("write_file", '{"path": "a.py", "content": "x', id="dup"), Call("read_file", {"path": "b"}, id="dup"))), Reply(text="fine")]
    async with ProviderServer(lambda r: answers[r.number]) as server:
        ask = asked(server, wire)
        first = await ask()
        calls = first.message["tool_calls"]
        assert calls[0]["function"]["name"] == "write_file" and '{"path": "a.py", "content": "x' in calls[0]["function"]["arguments"]
        try:
            json.loads(calls[0]["function"]["arguments"])
            raise AssertionError("the arguments must come as they were")
        except ValueError:
            pass
        results = [{"role": "tool", "tool_call_id": c["id"], "tool_name": c["function"]["name"], "content": f"result {i}"} for i, c in enumerate(calls)]
        second = await ask([{"role": "user", "content": "x"}, first.message, *results])
        await ask.client.close()
    assert second.message["content"] == "fine"
    sent = server.requests[1]
    assert sent.turn == 1 and all(f"result {i}" in sent.text for i in range(len(calls)))
    check_pairs(sent, len(calls))


async def test_google_reads_the_call_itself(asked: Any) -> None:
    reader = ContentsReader()
    said = "Malformed function call: print(default_api.write_file(path='x"
    reader.feed({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": said}], "usageMetadata": {"promptTokenCount": 5}})
    reply = reader.draft.reply()
    assert reply.message["tool_calls"][0]["function"] == {"name": "write_file", "arguments": "path='x"} and reply.usage.input_tokens == 5
    async with ProviderServer(lambda r: Reply(calls=(Call("write_file", "{bad"),))) as server:
        ask = asked(server, "google")
        with pytest.raises(ProviderFailure, match="could not read") as caught:
            await ask()
        await ask.client.close()
    assert caught.value.kind == "truncated", "asked again: what the model said is lost"


async def test_repeated_ids_over_the_wire(asked: Any, wire: Api) -> None:
    calls = (Call("write_file", {"path": "a"}, id="dup"), Call("write_file", {"path": "b"}, id="dup"))
    answers = [Reply(calls=calls), Reply(text="fine")]
    async with ProviderServer(lambda r: answers[r.number]) as server:
        ask = asked(server, wire)
        first = await ask()
        results = [{"role": "tool", "tool_call_id": c["id"], "tool_name": "write_file", "content": f"result {i}"} for i, c in enumerate(first.message["tool_calls"])]
        assert (await ask([{"role": "user", "content": "x"}, first.message, *results])).message["content"] == "fine"
        await ask.client.close()
    check_pairs(server.requests[1], 2)


def check_pairs(sent: ProviderRequest, expected: int) -> None:
    """As the provider itself would: unique ids, each call answered, arguments an object."""
    if sent.wire == "openai-chat":
        calls = [c for m in sent.history for c in m.get("tool_calls") or []]
        made = [(c["id"], json.loads(c["function"]["arguments"])) for c in calls]
        answered = [m["tool_call_id"] for m in sent.history if m["role"] == "tool"]
    elif sent.wire == "openai-responses":
        made = [(i["call_id"], json.loads(i["arguments"])) for i in sent.history if i.get("type") == "function_call"]
        answered = [i["call_id"] for i in sent.history if i.get("type") == "function_call_output"]
    elif sent.wire == "anthropic":
        blocks = [b for m in sent.history for b in (m["content"] if isinstance(m["content"], list) else [])]
        made = [(b["id"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        answered = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
    else:
        parts = [p for m in sent.history for p in m["parts"]]
        made = [(str(i), p["functionCall"].get("args", {})) for i, p in enumerate(p for p in parts if "functionCall" in p)]
        answered = [str(i) for i, p in enumerate(p for p in parts if "functionResponse" in p)]
    assert [i for i, _ in made] == answered and len(set(answered)) == expected
    assert all(isinstance(arguments, dict) for _, arguments in made)


async def test_reasoning_goes_back_as_it_came(asked: Any) -> None:
    """Anthropic and Google refuse a tool turn whose signed reasoning is missing."""
    answer = Reply(thinking="deep", text="t", calls=(Call("write_file", {"path": "a"}), Call("write_file", {"path": "b"})))
    for wire, wanted in (("anthropic", '{"signature": "signed", "thinking": "deep", "type": "thinking"}'), ("google", '"thoughtSignature": "c2lnbmVk"')):
        async with ProviderServer(lambda r: answer) as server:
            ask = asked(server, wire)
            first = json.loads(json.dumps((await ask()).message))      # as the journal keeps it
            results = [{"role": "tool", "tool_call_id": c["id"], "tool_name": "write_file", "content": "ok"} for c in first["tool_calls"]]
            await ask([{"role": "user", "content": "x"}, first, *results])
            await ask.client.close()
        assert wanted in server.requests[1].text, server.requests[1].text
        assert server.requests[1].text.count("signed") <= 1 and server.requests[1].text.count("c2lnbmVk") <= 1


async def test_an_empty_turn_in_the_history_is_sendable(asked: Any, wire: Api) -> None:
    async with ProviderServer(lambda r: Reply(text="ok")) as server:
        ask = asked(server, wire)
        history = [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": "a \ud800 b"}]
        assert (await ask(history)).message["content"] == "ok"
        await ask.client.close()
    if wire == "anthropic":
        texts = [b["text"] for m in server.requests[0].history for b in m["content"]]
        assert all(t.strip() for t in texts), "Anthropic refuses empty text"
