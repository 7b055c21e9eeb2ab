"""What providers say on the wire: one ``Reply`` as OpenAI chat completion, OpenAI response, Anthropic message, Google answer.

Written from the providers' references, apart from the code under test: it is the tests' second opinion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Wire = Literal["openai-chat", "openai-responses", "anthropic", "google"]
Event = tuple[str | None, Any]                 # name of a server-sent event and its data; data ``str`` is sent as it is
_PIECE = 7                                     # characters in each streamed delta


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``arguments``: an object, or a string that is sent verbatim (malformed JSON, for instance)."""

    name: str
    arguments: dict[str, Any] | str = "{}"
    id: str | None = None

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)

    @property
    def object(self) -> Any:
        """For wires that carry objects; malformed text stays a string, as broken providers send it."""
        try:
            return json.loads(self.text)
        except ValueError:
            return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An assistant's answer. ``cached_tokens`` are part of ``input_tokens``. ``finish`` None: by content."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    input_tokens: int = 1000
    output_tokens: int = 100
    cached_tokens: int = 0
    finish: Literal["stop", "length"] | None = None

    def call_id(self, position: int, prefix: str = "call_") -> str:
        return self.calls[position].id or f"{prefix}{position}"


def pieces(text: str) -> list[str]:
    return [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]


# ---- OpenAI chat completions --------------------------------------------------------------------


def _chat_usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _chat_finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _chat_call(reply: Reply, i: int) -> dict[str, Any]:
    call = reply.calls[i]
    return {"id": reply.call_id(i), "type": "function", "function": {"name": call.name, "arguments": call.text}}


def chat_body(reply: Reply, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [_chat_call(reply, i) for i in range(len(reply.calls))]
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(reply), "logprobs": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
    return {**head, "choices": [choice], "usage": _chat_usage(reply)}


def chat_events(reply: Reply, model: str) -> Iterator[Event]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        return None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}

    yield chunk({"role": "assistant", "content": ""})
    for part in pieces(reply.text):
        yield chunk({"content": part})
    for i in range(len(reply.calls)):
        call = _chat_call(reply, i)
        start = {"index": i, **call, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield chunk({"tool_calls": [start]})
        for part in pieces(reply.calls[i].text):
            yield chunk({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
    yield chunk({}, _chat_finish(reply))
    yield None, {**head, "choices": [], "usage": _chat_usage(reply)}
    yield None, "[DONE]"


# ---- OpenAI responses ---------------------------------------------------------------------------


def responses_body(reply: Reply, model: str) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.text:
        output.append(_text_item(reply.text))
    output += [_call_item(reply, i) for i in range(len(reply.calls))]
    return {**_response_head(model, "incomplete" if reply.finish == "length" else "completed"), "output": output, "usage": _response_usage(reply)}


def _response_head(model: str, status: str) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": model, "output": [], "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0,
    }  # fmt: skip


def _response_usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }


def _text_item(text: str, status: str = "completed") -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}] if text else []
    return {"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": content}


def _call_item(reply: Reply, i: int, *, arguments: str | None = None) -> dict[str, Any]:
    text = reply.calls[i].text if arguments is None else arguments
    return {"id": f"fc_{i}", "type": "function_call", "status": "completed", "name": reply.calls[i].name, "call_id": reply.call_id(i), "arguments": text}


def responses_events(reply: Reply, model: str) -> Iterator[Event]:
    for number, (name, data) in enumerate(_responses_events(reply, model)):
        yield name, {"type": name, "sequence_number": number, **data}


def _responses_events(reply: Reply, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": _response_head(model, "in_progress")}
    yield "response.in_progress", {"response": _response_head(model, "in_progress")}
    index = 0
    if reply.text:
        place = {"item_id": "msg_1", "output_index": index, "content_index": 0}
        yield "response.output_item.added", {"output_index": index, "item": _text_item("", "in_progress")}
        yield "response.content_part.added", {**place, "part": {"type": "output_text", "text": "", "annotations": []}}
        for part in pieces(reply.text):
            yield "response.output_text.delta", {**place, "delta": part, "logprobs": []}
        yield "response.output_text.done", {**place, "text": reply.text, "logprobs": []}
        yield "response.content_part.done", {**place, "part": {"type": "output_text", "text": reply.text, "annotations": []}}
        yield "response.output_item.done", {"output_index": index, "item": _text_item(reply.text)}
        index += 1
    for i in range(len(reply.calls)):
        yield "response.output_item.added", {"output_index": index, "item": {**_call_item(reply, i, arguments=""), "status": "in_progress"}}
        for part in pieces(reply.calls[i].text):
            yield "response.function_call_arguments.delta", {"item_id": f"fc_{i}", "output_index": index, "delta": part}
        done = {"item_id": f"fc_{i}", "output_index": index, "arguments": reply.calls[i].text, "name": reply.calls[i].name}
        yield "response.function_call_arguments.done", done
        yield "response.output_item.done", {"output_index": index, "item": _call_item(reply, i)}
        index += 1
    last = "response.incomplete" if reply.finish == "length" else "response.completed"
    yield last, {"response": responses_body(reply, model)}


# ---- Anthropic messages -------------------------------------------------------------------------


def _anthropic_usage(reply: Reply) -> dict[str, Any]:
    # Anthropic counts cached tokens apart from input_tokens.
    return {
        "input_tokens": reply.input_tokens - reply.cached_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": reply.output_tokens,
    }


def _anthropic_stop(reply: Reply) -> str:
    if reply.finish == "length":
        return "max_tokens"
    return "tool_use" if reply.calls and not reply.finish else "end_turn"


def anthropic_body(reply: Reply, model: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.thinking:
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": "signed"})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    for i, call in enumerate(reply.calls):
        content.append({"type": "tool_use", "id": reply.call_id(i, "toolu_"), "name": call.name, "input": call.object})
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
    return {**head, "content": content, "stop_reason": _anthropic_stop(reply), "usage": _anthropic_usage(reply)}


def anthropic_events(reply: Reply, model: str) -> Iterator[Event]:
    for name, data in _anthropic_events(reply, model):
        yield name, {"type": name, **data}


def _anthropic_events(reply: Reply, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    start = {**anthropic_body(Reply(), model), "stop_reason": None, "usage": {**_anthropic_usage(reply), "output_tokens": 1}}
    yield "message_start", {"message": start}
    yield "ping", {}
    for index, (block, deltas) in enumerate(_anthropic_blocks(reply)):
        yield "content_block_start", {"index": index, "content_block": block}
        for delta in deltas:
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    yield "message_delta", {"delta": {"stop_reason": _anthropic_stop(reply), "stop_sequence": None}, "usage": {"output_tokens": reply.output_tokens}}
    yield "message_stop", {}


def _anthropic_blocks(reply: Reply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if reply.thinking:
        deltas = [{"type": "thinking_delta", "thinking": p} for p in pieces(reply.thinking)]
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, {"type": "signature_delta", "signature": "signed"}]
    if reply.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in pieces(reply.text)]
    for i, call in enumerate(reply.calls):
        block: dict[str, Any] = {"type": "tool_use", "id": reply.call_id(i, "toolu_"), "name": call.name, "input": {}}
        yield block, [{"type": "input_json_delta", "partial_json": p} for p in pieces(call.text)]


# ---- Google generateContent ---------------------------------------------------------------------


def _google_usage(reply: Reply) -> dict[str, Any]:
    return {
        "promptTokenCount": reply.input_tokens,
        "candidatesTokenCount": reply.output_tokens,
        "cachedContentTokenCount": reply.cached_tokens,
        "totalTokenCount": reply.input_tokens + reply.output_tokens,
    }


def _google_parts(reply: Reply) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
    for i, call in enumerate(reply.calls):
        arguments: Any = call.object if isinstance(call.object, dict) else {}  # pyright: ignore[reportUnknownMemberType]
        function: dict[str, Any] = {"name": call.name, "args": arguments}
        if call.id:
            function["id"] = call.id
        parts.append({"functionCall": function, **({"thoughtSignature": "c2lnbmVk"} if i == 0 and reply.thinking else {})})
    return parts


def _google_finish(reply: Reply) -> str:
    if any(not isinstance(c.object, dict) for c in reply.calls):
        return "MALFORMED_FUNCTION_CALL"
    return "MAX_TOKENS" if reply.finish == "length" else "STOP"


def google_body(reply: Reply, model: str) -> dict[str, Any]:
    finish = _google_finish(reply)
    parts = [] if finish == "MALFORMED_FUNCTION_CALL" else _google_parts(reply)
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}
    if finish == "MALFORMED_FUNCTION_CALL":
        candidate["finishMessage"] = f"Malformed function call: {reply.calls[0].name}({reply.calls[0].text})"
    return {"candidates": [candidate], "usageMetadata": _google_usage(reply), "modelVersion": model, "responseId": "r1"}


def google_events(reply: Reply, model: str) -> Iterator[Event]:
    last = google_body(reply, model)
    parts = last["candidates"][0]["content"]["parts"]
    for part in parts:
        for piece in [{"text": p} for p in pieces(part["text"])] if "text" in part else [part]:
            candidate = {"content": {"role": "model", "parts": [piece]}, "index": 0}
            yield None, {"candidates": [candidate], "modelVersion": model, "responseId": "r1"}
    yield None, {**last, "candidates": [{**last["candidates"][0], "content": {"role": "model", "parts": [{"text": ""}]}}]}


BODIES = {"openai-chat": chat_body, "openai-responses": responses_body, "anthropic": anthropic_body, "google": google_body}
EVENTS = {"openai-chat": chat_events, "openai-responses": responses_events, "anthropic": anthropic_events, "google": google_events}


def error_body(wire: Wire, status: int, message: str, code: str | None) -> dict[str, Any]:
    """An error as the provider shapes it. ``code``: its machine-readable kind."""
    if wire == "anthropic":
        kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
                 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}  # fmt: skip
        return {"type": "error", "error": {"type": code or kinds.get(status, "api_error"), "message": message}}
    if wire == "google":
        kinds = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
                 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}  # fmt: skip
        return {"error": {"code": status, "message": message, "status": code or kinds.get(status, "INTERNAL")}}
    kind = {401: "invalid_request_error", 429: "requests", 500: "server_error"}.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
