"""A conversation in OpenAI chat form: clean text, unique call ids, and no tool request without its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from capataz.contracts.errors import ProgramError

Chat = dict[str, Any]
UNANSWERED = "error: this call was not run; call it again if it is still needed"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool request. ``arguments`` None: they are no JSON object, and ``problem`` says why."""

    position: int
    id: str
    name: str
    arguments: dict[str, Any] | None
    problem: str = ""
    raw: str = ""


def clean_text(value: Any) -> str:
    """Text that every store and provider takes: no lone surrogates, no NUL."""
    if value is None:
        return ""
    if isinstance(value, str) and value.isascii() and "\0" not in value:
        return value
    if isinstance(value, list):                # content parts
        value = "".join(part.get("text") or "" for part in value if isinstance(part, dict))  # pyright: ignore
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def clean_json(value: Any) -> Any:
    """JSON data whose strings are ``clean_text``: what the journal takes."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(k): clean_json(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [clean_json(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def assistant(message: Any, turn: int, used: set[str]) -> Chat:
    """A model's message as it goes into the history: clean, its calls well-formed and with ids that nothing else has.

    Providers repeat ids (and some give none); a repeated one is replaced here, in the request and its result alike.
    """
    source: Chat = message if isinstance(message, dict) else {"content": message}  # pyright: ignore[reportUnknownVariableType]
    result: Chat = {k: clean_json(v) for k, v in source.items() if k not in ("role", "content", "tool_calls")}
    result["role"] = "assistant"
    result["content"] = clean_text(source.get("content"))
    requests = source.get("tool_calls")
    calls = [_request(c, turn, i, used) for i, c in enumerate(requests if isinstance(requests, list) else [])]  # pyright: ignore
    if calls:
        result["tool_calls"] = calls
    return result


def _request(call: Any, turn: int, position: int, used: set[str]) -> Chat:
    call = call if isinstance(call, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    function: Any = call.get("function")
    function = function if isinstance(function, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    arguments: Any = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=True, default=str)
    name = function.get("name")
    extra = {k: clean_json(v) for k, v in call.items() if k not in ("id", "type", "function")}
    return {
        **extra,
        "id": _unique(call.get("id"), turn, position, used),
        "type": "function",
        "function": {"name": clean_text(name) if isinstance(name, str) and name else "unnamed", "arguments": clean_text(arguments) if arguments.strip() else "{}"},
    }


def _unique(given: Any, turn: int, position: int, used: set[str]) -> str:
    call_id = clean_text(given) if isinstance(given, str) and 0 < len(given) <= 200 else ""
    if not call_id or call_id in used:
        call_id = f"call_t{turn}_{position}"
        while call_id in used:
            call_id += "x"
    used.add(call_id)
    return call_id


def calls_of(message: Chat) -> list[Call]:
    """The tool requests of an assistant message, their arguments parsed."""
    return [_parse(position, call) for position, call in enumerate(message.get("tool_calls") or ())]


def _parse(position: int, call: Chat) -> Call:
    name, raw = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        return Call(position, call["id"], name, None, f"the arguments of {name} are no valid JSON ({error}); send one JSON object", raw)
    if not isinstance(arguments, dict):
        return Call(position, call["id"], name, None, f"the arguments of {name} must be one JSON object, not {type(arguments).__name__}", raw)
    return Call(position, call["id"], name, arguments, "", raw)  # pyright: ignore[reportUnknownArgumentType]


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def sent(message: Chat) -> Chat:
    """An assistant message as providers take it back: arguments that were no JSON object are wrapped, so that they parse."""
    if not message.get("tool_calls"):
        return message
    bad = [c.position for c in calls_of(message) if c.arguments is None]
    if not bad:
        return message
    calls = [dict(call) for call in message["tool_calls"]]
    for position in bad:
        raw = calls[position]["function"]["arguments"]
        calls[position]["function"] = {**calls[position]["function"], "arguments": json.dumps({"malformed": raw[:2_000]})}
    return {**message, "tool_calls": calls}


def tool_message(call: Call, content: str) -> Chat:
    return {"role": "tool", "tool_call_id": call.id, "tool_name": call.name, "content": content}


def user(text: str) -> Chat:
    return {"role": "user", "content": clean_text(text)}


def repaired(messages: list[Chat]) -> list[Chat]:
    """The same conversation where every tool request is followed by its result and every result follows its request."""
    out: list[Chat] = []
    i = 0
    while i < len(messages):
        message = messages[i]
        i += 1
        if message.get("role") == "tool":
            continue                           # a result whose request is gone
        out.append(message)
        requests = message.get("tool_calls") or []
        if not requests:
            continue
        results: dict[str, Chat] = {}
        while i < len(messages) and messages[i].get("role") == "tool":
            results.setdefault(messages[i].get("tool_call_id", ""), messages[i])
            i += 1
        for request in requests:
            missing = {"role": "tool", "tool_call_id": request["id"], "tool_name": request["function"]["name"], "content": UNANSWERED}
            out.append(results.get(request["id"], missing))
    return out


def selected(messages: Any) -> list[Chat]:
    """What a program's ``context=`` chose, checked. Raises ``ProgramError``."""
    if not all(isinstance(m, dict) and m.get("role") in ("system", "user", "assistant", "tool") for m in messages):
        raise ProgramError("context= must return messages as it was given them: dicts with a role")
    chosen = [clean_json(m) for m in messages]
    for message in chosen:
        message["content"] = clean_text(message.get("content"))
    return chosen


def size(messages: list[Chat]) -> int:
    """Characters of a conversation, requests included."""
    total = 0
    for message in messages:
        total += len(message.get("content") or "") + 8
        for call in message.get("tool_calls") or ():
            total += len(call["function"]["name"]) + len(call["function"]["arguments"]) + 16
    return total
