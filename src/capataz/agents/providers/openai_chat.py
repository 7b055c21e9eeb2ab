"""OpenAI chat completions, also as other servers speak it."""

from __future__ import annotations

from typing import Any

from capataz.agents.model_client import ProviderFailure
from capataz.agents.providers.conversation import repaired
from capataz.agents.providers.draft import Draft, DraftCall
from capataz.agents.providers.loose import count, obj, objs, text

_KEPT = ("reasoning_content", "reasoning_details")      # some servers refuse a tool turn whose reasoning does not come back


def request(
    *, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], max_output_tokens: int, native: bool
) -> dict[str, Any]:
    """``native``: OpenAI itself, which wants ``max_completion_tokens``; other servers know ``max_tokens``."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(m, native) for m in repaired(messages)],
        "max_completion_tokens" if native else "max_tokens": max_output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = tools
    return body


def _message(message: dict[str, Any], native: bool) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": message["content"]}
    kept = {} if native else {k: message[k] for k in _KEPT if message.get(k)}
    if message.get("tool_calls"):
        return {"role": "assistant", "content": message["content"] or None, "tool_calls": message["tool_calls"], **kept}
    return {"role": message["role"], "content": message["content"], **kept}


class ChatReader:
    def __init__(self) -> None:
        self.draft = Draft()
        self._slots: dict[int, DraftCall] = {}

    def feed(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            raise stream_error(event["error"])
        if event.get("usage"):
            self._usage(obj(event["usage"]))
        for choice in objs(event.get("choices")):
            if not choice.get("index"):        # a second choice was never asked for
                self._delta(obj(choice.get("delta")))
                self.draft.finish = text(choice.get("finish_reason")) or self.draft.finish

    def feed_whole(self, body: dict[str, Any]) -> None:
        choices = [{**c, "delta": c.get("message")} for c in objs(body.get("choices"))]
        self.feed({**body, "choices": choices})

    def _usage(self, usage: dict[str, Any]) -> None:
        self.draft.input_tokens = count(usage.get("prompt_tokens"))
        self.draft.output_tokens = count(usage.get("completion_tokens"))
        self.draft.cached_tokens = count(obj(usage.get("prompt_tokens_details")).get("cached_tokens"))

    def _delta(self, delta: dict[str, Any]) -> None:
        for key in ("content", "refusal"):
            self.draft.text.append(text(delta.get(key)))
        if text(delta.get("reasoning_content")):
            self.draft.extra["reasoning_content"] = self.draft.extra.get("reasoning_content", "") + delta["reasoning_content"]
        if objs(delta.get("reasoning_details")):
            self.draft.extra["reasoning_details"] = [*self.draft.extra.get("reasoning_details", []), *objs(delta["reasoning_details"])]
        for place, call in enumerate(objs(delta.get("tool_calls"))):
            self._call(call, place)

    def _call(self, call: dict[str, Any], place: int) -> None:
        index = call["index"] if isinstance(call.get("index"), int) else place
        function = obj(call.get("function"))
        slot = self._slots.get(index)
        # Some servers put every call at index 0: a new name with a new id is a new call.
        if slot is None or (function.get("name") and call.get("id") and slot.name and slot.id != call["id"]):
            slot = self._slots[index] = DraftCall()
            self.draft.calls.append(slot)
        slot.id = text(call.get("id")) or slot.id
        slot.name = text(function.get("name")) or slot.name
        if function.get("arguments"):
            slot.arguments.append(str(function["arguments"]))


def stream_error(error: Any) -> ProviderFailure:
    """An error that comes in the middle of a stream whose status was 200."""
    from capataz.agents.providers.failures import from_body

    return from_body(obj(error) or {"message": str(error)})
