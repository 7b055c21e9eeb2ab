"""The conversation before it goes to a provider: no provider ever sees what it would refuse.

Models repeat tool-call ids, invent tool names and write arguments that are no JSON; a crash leaves requests without a
result. Each of these makes providers refuse the *next* request, so they are mended here, once, for all wires. The
conversation that the harness and the journal keep is not touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

Message = dict[str, Any]
LOST = "No result: the call was interrupted before it ended."
_NAME = re.compile(r"[^A-Za-z0-9_-]")


def repaired(messages: Iterable[Message]) -> list[Message]:
    """The same conversation with unique call ids, each call answered directly after it, and nothing unanswerable."""
    return list(_Repair(list(messages)).run())


class _Repair:
    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._ids: set[str] = set()

    def run(self) -> Iterator[Message]:
        place = 0
        while place < len(self._messages):
            message = self._messages[place]
            place += 1
            if message["role"] == "tool":      # an orphan: its request is gone (cut off by compaction)
                yield {"role": "user", "content": f"Result of an earlier tool call:\n{text_of(message)}"}
            elif message["role"] == "assistant" and message.get("tool_calls"):
                results: list[Message] = []
                while place < len(self._messages) and self._messages[place]["role"] == "tool":
                    results.append(self._messages[place])
                    place += 1
                yield from self._turn(message, results)
            else:
                yield {**message, "content": text_of(message)}

    def _turn(self, message: Message, results: list[Message]) -> Iterator[Message]:
        calls: list[Message] = message["tool_calls"]
        answers = _matched(calls, results)
        ids = [self._fresh(call.get("id")) for call in calls]
        yield {**message, "content": text_of(message), "tool_calls": [_mended(call, id) for call, id in zip(calls, ids, strict=True)]}
        for call, id, answer in zip(calls, ids, answers, strict=True):
            content = LOST if answer is None else text_of(answer)
            yield {"role": "tool", "tool_call_id": id, "tool_name": tool_name(call), "content": content}

    def _fresh(self, id: Any) -> str:
        base = _NAME.sub("_", str(id))[:56] if id else f"call_{len(self._ids)}"
        unique, number = base, 1
        while unique in self._ids:
            number += 1
            unique = f"{base}-{number}"
        self._ids.add(unique)
        return unique


def _matched(calls: list[Message], results: list[Message]) -> list[Message | None]:
    """Results by call: the first unused one with the call's id, then by order. Repeated ids thus keep their order."""
    left = list(results)
    found: list[Message | None] = []
    for call in calls:
        same = next((r for r in left if r.get("tool_call_id") == call.get("id")), None)
        if same is not None:
            left.remove(same)
        found.append(same)
    return [answer if answer is not None else (left.pop(0) if left else None) for answer in found]


def tool_name(call: Message) -> str:
    """A name that providers accept; models invent others."""
    return _NAME.sub("_", str(call.get("function", {}).get("name") or "unknown"))[:64]


def arguments_of(call: Message) -> dict[str, Any]:
    """The call's arguments as an object; text that is none stays visible to the model under one key."""
    text = call.get("function", {}).get("arguments")
    try:
        value: Any = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    if text in ("", None):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"invalid_arguments": scalar_text(str(text))}


def _mended(call: Message, id: str) -> Message:
    arguments = json.dumps(arguments_of(call), ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": tool_name(call), "arguments": scalar_text(arguments)}}


def text_of(message: Message) -> str:
    """The message's text; parts of other kinds are left out."""
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        content = "".join(str(p.get("text", "")) if isinstance(p, dict) else str(p) for p in parts)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return scalar_text("" if content is None else str(content))


def scalar_text(text: str) -> str:
    """Without lone surrogates, which are no Unicode text and which no request can carry."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def merged(messages: Iterable[Message]) -> list[Message]:
    """Neighbouring messages of one role joined (their ``content`` lists): some providers want the roles to alternate."""
    out: list[Message] = []
    for message in messages:
        if out and out[-1]["role"] == message["role"]:
            out[-1]["content"].extend(message["content"])
        else:
            out.append({**message, "content": list(message["content"])})
    return out
