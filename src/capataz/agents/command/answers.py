"""Our reply in the form that a program expects: whole or as server-sent events, and errors in each provider's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from capataz.agents.command.requests import Asked, Wire
from capataz.agents.model_client import ClientReply
from capataz.agents.providers.conversation import arguments_of
from capataz.agents.providers.loose import objs, text

Event = tuple[str | None, Any]
_ANTHROPIC_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


def body_of(asked: Asked, reply: ClientReply) -> dict[str, Any]:
    return {"openai-chat": _chat, "openai-responses": _response, "anthropic": _message}[asked.wire](asked, reply)


def stream_of(asked: Asked, reply: ClientReply) -> bytes:
    """The same answer as server-sent events."""
    events = {"openai-chat": _chat_events, "openai-responses": _response_events, "anthropic": _message_events}[asked.wire](asked, reply)
    return b"".join(map(_encoded, events))


def _encoded(event: Event) -> bytes:
    name, data = event
    written = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return ((f"event: {name}\n" if name else "") + f"data: {written}\n\n").encode()


def error_of(wire: Wire, status: int, message: str, code: str) -> dict[str, Any]:
    if wire == "anthropic":
        return {"type": "error", "error": {"type": _ANTHROPIC_KINDS.get(status, "api_error"), "message": message}}
    return {"error": {"message": message, "type": "invalid_request_error" if status < 500 else "server_error", "param": None, "code": code}}


def error_event(wire: Wire, error: dict[str, Any]) -> bytes:
    """The same error in the middle of a stream."""
    if wire == "openai-responses":
        failed = {"id": "resp_failed", "object": "response", "status": "failed", "error": error["error"], "output": list[Any]()}
        return _encoded(("response.failed", {"type": "response.failed", "sequence_number": 0, "response": failed}))
    return _encoded(("error" if wire == "anthropic" else None, error))


def pulse(wire: Wire) -> bytes:
    """What keeps a waiting client awake."""
    return _encoded(("ping", {"type": "ping"})) if wire == "anthropic" else b": wait\n\n"


def _calls(reply: ClientReply) -> list[dict[str, Any]]:
    """Ids unique within the answer: programs use them as keys."""
    seen: set[str] = set()
    calls: list[dict[str, Any]] = []
    for place, call in enumerate(objs(reply.message.get("tool_calls"))):
        id = text(call.get("id")) or f"call_{place}"
        id = id if id not in seen else f"{id}-{place}"
        seen.add(id)
        calls.append({**call, "id": id})
    return calls


def _said(reply: ClientReply) -> str:
    return text(reply.message.get("content"))


# ---- OpenAI chat completions --------------------------------------------------------------------


def _chat_usage(reply: ClientReply) -> dict[str, Any]:
    used = reply.usage
    return {
        "prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens, "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }  # fmt: skip


def _chat_finish(reply: ClientReply) -> str:
    return "length" if reply.finish == "length" else "tool_calls" if reply.message.get("tool_calls") else "stop"


def _chat(asked: Asked, reply: ClientReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _said(reply) or None}
    if _calls(reply):
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(reply)}
    head = {"id": "chatcmpl-capataz", "object": "chat.completion", "created": 0, "model": asked.model}
    return {**head, "choices": [choice], "usage": _chat_usage(reply)}


def _chat_events(asked: Asked, reply: ClientReply) -> Iterator[Event]:
    head = {"id": "chatcmpl-capataz", "object": "chat.completion.chunk", "created": 0, "model": asked.model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        return None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": _said(reply)})
    for index, call in enumerate(_calls(reply)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _chat_finish(reply))
    yield None, {**head, "choices": [], "usage": _chat_usage(reply)}
    yield None, "[DONE]"


# ---- OpenAI responses ---------------------------------------------------------------------------


def _response(asked: Asked, reply: ClientReply) -> dict[str, Any]:
    used = reply.usage
    short = reply.finish == "length"
    return {
        "id": "resp_capataz", "object": "response", "created_at": 0, "model": asked.model, "output": _items(asked, reply),
        "status": "incomplete" if short else "completed", "error": None, "incomplete_details": {"reason": "max_output_tokens"} if short else None,
        "usage": {
            "input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "total_tokens": used.input_tokens + used.output_tokens,
            "input_tokens_details": {"cached_tokens": used.cached_tokens}, "output_tokens_details": {"reasoning_tokens": 0},
        },
    }  # fmt: skip


def _items(asked: Asked, reply: ClientReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    calls = _calls(reply)
    if _said(reply) or not calls:
        content = [{"type": "output_text", "text": _said(reply), "annotations": list[Any]()}]
        items.append({"id": "msg_0", "type": "message", "status": "completed", "role": "assistant", "content": content})
    for place, call in enumerate(calls):
        function = call["function"]
        item = {"id": f"fc_{place}", "status": "completed", "call_id": call["id"], "name": function["name"]}
        if function["name"] in asked.custom:
            items.append({**item, "type": "custom_tool_call", "input": text(arguments_of(call).get("input"))})
        else:
            items.append({**item, "type": "function_call", "arguments": function["arguments"]})
    return items


def _response_events(asked: Asked, reply: ClientReply) -> Iterator[Event]:
    for number, (name, data) in enumerate(_response_parts(asked, reply)):
        yield name, {"type": name, "sequence_number": number, **data}


def _response_parts(asked: Asked, reply: ClientReply) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = _response(asked, reply)
    yield "response.created", {"response": {**whole, "status": "in_progress", "output": list[Any](), "usage": None}}
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        empty = {"message": {"content": list[Any]()}, "function_call": {"arguments": ""}, "custom_tool_call": {"input": ""}}[item["type"]]
        yield "response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}}
        if item["type"] == "message":
            part = item["content"][0]
            yield "response.content_part.added", {**place, "content_index": 0, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**place, "content_index": 0, "delta": part["text"], "logprobs": list[Any]()}
            yield "response.output_text.done", {**place, "content_index": 0, "text": part["text"], "logprobs": list[Any]()}
            yield "response.content_part.done", {**place, "content_index": 0, "part": part}
        elif item["type"] == "function_call":
            yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
            yield "response.function_call_arguments.done", {**place, "arguments": item["arguments"], "name": item["name"]}
        else:
            yield "response.custom_tool_call_input.delta", {**place, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**place, "input": item["input"]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{whole['status']}", {"response": whole}


# ---- Anthropic messages -------------------------------------------------------------------------


def _message_usage(reply: ClientReply) -> dict[str, Any]:
    used = reply.usage
    return {
        "input_tokens": used.input_tokens - used.cached_tokens, "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cached_tokens, "cache_creation_input_tokens": 0,
    }  # fmt: skip


def _blocks(reply: ClientReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": _said(reply)}] if _said(reply) else []
    for call in _calls(reply):
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments_of(call)})
    return blocks


def _message(asked: Asked, reply: ClientReply) -> dict[str, Any]:
    stop = "max_tokens" if reply.finish == "length" else "tool_use" if _calls(reply) else "end_turn"
    head = {"id": "msg_capataz", "type": "message", "role": "assistant", "model": asked.model, "stop_sequence": None}
    return {**head, "content": _blocks(reply), "stop_reason": stop, "usage": _message_usage(reply)}


def _message_events(asked: Asked, reply: ClientReply) -> Iterator[Event]:
    whole = _message(asked, reply)
    yield "message_start", {"type": "message_start", "message": {**whole, "content": list[Any](), "stop_reason": None}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": dict[str, Any]()}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": start}
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ended, "usage": {"output_tokens": reply.usage.output_tokens}}
    yield "message_stop", {"type": "message_stop"}
