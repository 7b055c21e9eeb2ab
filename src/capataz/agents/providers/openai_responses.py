"""OpenAI responses: the only way to some of its models, and what some coding programs speak."""

from __future__ import annotations

import re
from typing import Any

from capataz.agents.providers.conversation import repaired
from capataz.agents.providers.draft import Draft, DraftCall
from capataz.agents.providers.loose import count, obj, objs, text

_REASONS = re.compile(r"o\d|gpt-[5-9](?!.*chat)|codex")
_REASONING = ("id", "type", "summary", "encrypted_content")


def request(*, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], max_output_tokens: int) -> dict[str, Any]:
    """Nothing is stored at the provider; its reasoning travels with the conversation, encrypted."""
    clean = repaired(messages)
    system = "\n\n".join(m["content"] for m in clean if m["role"] == "system" and m["content"])
    body: dict[str, Any] = {
        "model": model,
        "input": [item for m in clean if m["role"] != "system" for item in _items(m)],
        "max_output_tokens": max_output_tokens,
        "store": False,
        "stream": True,
    }
    if _REASONS.match(model):
        body["include"] = ["reasoning.encrypted_content"]      # other models refuse it
    if system:
        body["instructions"] = system
    if tools:
        body["tools"] = [_tool(t["function"]) for t in tools]
    return body


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    schema = obj(function.get("parameters")) or {"type": "object", "properties": dict[str, Any]()}
    return {"type": "function", "name": function["name"], "description": function.get("description", ""), "parameters": schema, "strict": False}


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    if message["role"] != "assistant":
        return [{"role": message["role"], "content": message["content"]}]
    items = objs(message.get("openai_reasoning"))
    if message["content"]:
        items.append({"role": "assistant", "content": message["content"]})
    for call in objs(message.get("tool_calls")):
        function = obj(call.get("function"))
        items.append({"type": "function_call", "call_id": call["id"], "name": function["name"], "arguments": function["arguments"]})
    return items


class ResponsesReader:
    def __init__(self) -> None:
        self.draft = Draft()
        self._calls: dict[int, DraftCall] = {}

    def feed(self, event: dict[str, Any]) -> None:
        index = count(event.get("output_index"))
        match event.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                self.draft.text.append(text(event.get("delta")))
            case "response.output_item.added":
                self._added(index, obj(event.get("item")))
            case "response.function_call_arguments.delta" if index in self._calls:
                self._calls[index].arguments.append(text(event.get("delta")))
            case "response.output_item.done":
                self._done(index, obj(event.get("item")))
            case "response.completed" | "response.incomplete":
                self._ended(obj(event.get("response")))
            case "response.failed" | "error":
                from capataz.agents.providers.failures import from_body

                raise from_body(obj(obj(event.get("response")).get("error")) or obj(event.get("error")) or event)
            case _:
                pass

    def feed_whole(self, body: dict[str, Any]) -> None:
        for index, item in enumerate(objs(body.get("output"))):
            for part in objs(item.get("content")):
                self.draft.text.append(text(part.get("text")) or text(part.get("refusal")))
            self._added(index, item)
            self._done(index, item)
        self._ended(body)

    def _added(self, index: int, item: dict[str, Any]) -> None:
        if item.get("type") in ("function_call", "custom_tool_call"):
            call = self._calls[index] = DraftCall(id=text(item.get("call_id")), name=text(item.get("name")))
            self.draft.calls.append(call)

    def _done(self, index: int, item: dict[str, Any]) -> None:
        if item.get("type") == "reasoning" and item.get("encrypted_content"):
            self.draft.extra.setdefault("openai_reasoning", []).append({k: item[k] for k in _REASONING if k in item})
        whole = text(item.get("arguments")) or text(item.get("input"))
        if whole and index in self._calls:
            self._calls[index].arguments = [whole]

    def _ended(self, response: dict[str, Any]) -> None:
        usage = obj(response.get("usage"))
        self.draft.input_tokens = count(usage.get("input_tokens"))
        self.draft.output_tokens = count(usage.get("output_tokens"))
        self.draft.cached_tokens = count(obj(usage.get("input_tokens_details")).get("cached_tokens"))
        reason = text(obj(response.get("incomplete_details")).get("reason"))
        if response.get("status") == "incomplete":
            self.draft.finish = "length" if reason in ("", "max_output_tokens") else reason
        else:
            self.draft.finish = "tool_calls" if self.draft.calls else "stop"
