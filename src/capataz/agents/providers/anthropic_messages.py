"""Anthropic messages."""

from __future__ import annotations

import json
from typing import Any

from capataz.agents.providers.conversation import arguments_of, merged, repaired, tool_name
from capataz.agents.providers.draft import Draft, DraftCall
from capataz.agents.providers.loose import count, obj, objs, text

_CACHED = {"type": "ephemeral"}
_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length", "model_context_window_exceeded": "length"}
_EMPTY = "(no text)"                           # an empty text block is refused


def request(*, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], max_output_tokens: int) -> dict[str, Any]:
    """The conversation's last block, the system prompt and the tools are marked for the provider's prompt cache."""
    clean = repaired(messages)
    system = "\n\n".join(m["content"] for m in clean if m["role"] == "system" and m["content"])
    turns = merged(_turn(m) for m in clean if m["role"] != "system")
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": _EMPTY}]})
    if turns[-1]["content"][-1]["type"] != "thinking":
        turns[-1]["content"][-1] = {**turns[-1]["content"][-1], "cache_control": _CACHED}
    body: dict[str, Any] = {"model": model, "max_tokens": max_output_tokens, "messages": turns}
    if system:
        body["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    if tools:
        body["tools"] = [_tool(t["function"]) for t in tools]
        body["tools"][-1]["cache_control"] = _CACHED
    return body


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    schema = obj(function.get("parameters")) or {"type": "object", "properties": dict[str, Any]()}
    return {"name": function["name"], "description": function.get("description", ""), "input_schema": schema}


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"] or _EMPTY}
        return {"role": "user", "content": [block]}
    if message["role"] != "assistant":
        return {"role": "user", "content": [{"type": "text", "text": message["content"] or _EMPTY}]}
    blocks: list[dict[str, Any]] = objs(message.get("anthropic_thinking"))
    if message["content"].strip():
        blocks.append({"type": "text", "text": message["content"].rstrip()})
    for call in objs(message.get("tool_calls")):
        blocks.append({"type": "tool_use", "id": call["id"], "name": tool_name(call), "input": arguments_of(call)})
    return {"role": "assistant", "content": blocks or [{"type": "text", "text": _EMPTY}]}


class MessagesReader:
    def __init__(self) -> None:
        self.draft = Draft()
        self._blocks: dict[int, dict[str, Any]] = {}
        self._calls: dict[int, DraftCall] = {}
        self._stop: str | None = None

    def feed(self, event: dict[str, Any]) -> None:
        index = count(event.get("index"))
        match event.get("type"):
            case "message_start":
                self._usage(obj(obj(event.get("message")).get("usage")))
            case "content_block_start":
                self._start(index, obj(event.get("content_block")))
            case "content_block_delta":
                self._delta(index, obj(event.get("delta")))
            case "message_delta":
                self._stop = text(obj(event.get("delta")).get("stop_reason")) or self._stop
                self._usage(obj(event.get("usage")))
            case "message_stop":
                self.draft.finish = _FINISH.get(self._stop or "end_turn", self._stop)
            case "error":
                from capataz.agents.providers.failures import from_body

                raise from_body(obj(event.get("error")))
            case _:
                pass                           # ping, content_block_stop and what is still to be invented

    def feed_whole(self, body: dict[str, Any]) -> None:
        self._usage(obj(body.get("usage")))
        for index, block in enumerate(objs(body.get("content"))):
            self._start(index, block)
        self._stop = text(body.get("stop_reason")) or None
        self.feed({"type": "message_stop"})

    def _usage(self, usage: dict[str, Any]) -> None:
        """``message_delta`` repeats the counts of ``message_start``, or some of them."""
        cached, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
        total = count(usage.get("input_tokens")) + cached + written
        self.draft.input_tokens = max(self.draft.input_tokens, total)
        self.draft.cached_tokens = max(self.draft.cached_tokens, cached)
        self.draft.output_tokens = max(self.draft.output_tokens, count(usage.get("output_tokens")))

    def _start(self, index: int, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if kind == "tool_use":
            call = self._calls[index] = DraftCall(id=text(block.get("id")), name=text(block.get("name")))
            if block.get("input"):
                call.arguments.append(block["input"] if isinstance(block["input"], str) else json.dumps(block["input"], ensure_ascii=False))
            self.draft.calls.append(call)
        elif kind in ("thinking", "redacted_thinking"):
            kept = {k: v for k, v in block.items() if k in ("type", "thinking", "signature", "data") and v is not None}
            self._blocks[index] = kept
            self.draft.extra.setdefault("anthropic_thinking", []).append(kept)
        elif kind == "text":
            self.draft.text.append(text(block.get("text")))

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                self.draft.text.append(text(delta.get("text")))
            case "input_json_delta" if index in self._calls:
                self._calls[index].arguments.append(text(delta.get("partial_json")))
            case "thinking_delta" if index in self._blocks:
                self._blocks[index]["thinking"] = self._blocks[index].get("thinking", "") + text(delta.get("thinking"))
            case "signature_delta" if index in self._blocks:
                self._blocks[index]["signature"] = text(delta.get("signature"))
            case _:
                pass
