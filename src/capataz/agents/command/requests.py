"""What a program asks on the wire, as our own conversation: OpenAI chat and responses, Anthropic messages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from capataz.agents.providers.conversation import text_of
from capataz.agents.providers.loose import count, obj, objs, text

Wire = Literal["openai-chat", "openai-responses", "anthropic"]
_VOLATILE = ("metadata", "user", "prompt_cache_key", "safety_identifier", "client_metadata", "stream", "stream_options", "previous_response_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``custom``: names of tools whose argument is free text, not JSON (they are offered with one field ``input``)."""

    wire: Wire
    model: str
    stream: bool
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    max_output_tokens: int                     # 0: not said
    custom: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def turn(self) -> int:
        """Assistant messages so far: 0 at the start of a conversation."""
        return sum(m["role"] == "assistant" for m in self.messages)

    @property
    def prompt(self) -> str:
        return next((text_of(m) for m in self.messages if m["role"] == "user"), "")


def identity(body: dict[str, Any]) -> dict[str, Any]:
    """The body without what changes from process to process though the question is the same."""
    return {k: v for k, v in body.items() if k not in _VOLATILE}


def parse(wire: Wire, body: dict[str, Any]) -> Asked:
    """Junk reads as empty: the program is not trusted to speak well."""
    return {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _anthropic}[wire](body)


def _function(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    schema = obj(parameters) or {"type": "object", "properties": dict[str, Any]()}
    return {"type": "function", "function": {"name": text(name), "description": text(description), "parameters": schema}}


def _call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
    return {"id": text(id), "type": "function", "function": {"name": text(name), "arguments": written}}


class _Messages:
    """Builds the conversation; keeps the names of calls for their results."""

    def __init__(self) -> None:
        self.list: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}

    def say(self, role: str, content: str) -> None:
        role = {"developer": "system"}.get(role, role)
        self.list.append({"role": role if role in ("system", "user", "assistant") else "user", "content": content})

    def calls(self, calls: list[dict[str, Any]]) -> None:
        """Added to the assistant message before, if there is one."""
        self._names.update({c["id"]: c["function"]["name"] for c in calls})
        if not self.list or self.list[-1]["role"] != "assistant":
            self.say("assistant", "")
        self.list[-1].setdefault("tool_calls", []).extend(calls)

    def result(self, id: Any, content: str) -> None:
        call_id = text(id)
        self.list.append({"role": "tool", "tool_call_id": call_id, "tool_name": self._names.get(call_id, ""), "content": content})


def _chat(body: dict[str, Any]) -> Asked:
    made = _Messages()
    for message in objs(body.get("messages")):
        if message.get("role") == "tool":
            made.result(message.get("tool_call_id"), text_of(message))
            continue
        made.say(text(message.get("role")), text_of(message))
        calls = [(c, obj(c.get("function"))) for c in objs(message.get("tool_calls"))]
        if calls:
            made.calls([_call(c.get("id"), f.get("name"), f.get("arguments")) for c, f in calls])
    functions = [obj(t.get("function")) for t in objs(body.get("tools")) if t.get("type") == "function"]
    return Asked(
        wire="openai-chat", model=text(body.get("model")), stream=body.get("stream") is True, messages=made.list,
        tools=[_function(f.get("name"), f.get("description"), f.get("parameters")) for f in functions],
        max_output_tokens=count(body.get("max_completion_tokens")) or count(body.get("max_tokens")),
    )  # fmt: skip


def _responses(body: dict[str, Any]) -> Asked:
    made = _Messages()
    if text(body.get("instructions")):
        made.say("system", body["instructions"])
    given = body.get("input")
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else objs(given):
        _response_item(made, item)
    tools: list[dict[str, Any]] = []
    custom: set[str] = set()
    for tool in objs(body.get("tools")):
        if tool.get("type") == "function":
            tools.append(_function(tool.get("name"), tool.get("description"), tool.get("parameters")))
        elif tool.get("type") == "custom":
            custom.add(text(tool.get("name")))
            tools.append(_function(tool.get("name"), _custom_description(tool), {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}))
    return Asked(
        wire="openai-responses", model=text(body.get("model")), stream=body.get("stream") is True, messages=made.list, tools=tools,
        max_output_tokens=count(body.get("max_output_tokens")), custom=frozenset(custom),
    )  # fmt: skip


def _custom_description(tool: dict[str, Any]) -> str:
    grammar = text(obj(tool.get("format")).get("definition"))
    return text(tool.get("description")) + (f"\nThe input follows this grammar:\n{grammar}" if grammar else "")


def _response_item(made: _Messages, item: dict[str, Any]) -> None:
    match item.get("type", "message"):
        case "function_call":
            made.calls([_call(item.get("call_id"), item.get("name"), item.get("arguments"))])
        case "custom_tool_call":
            made.calls([_call(item.get("call_id"), item.get("name"), {"input": text(item.get("input"))})])
        case "function_call_output" | "custom_tool_call_output":
            output = item.get("output")
            made.result(item.get("call_id"), text_of({"content": output if isinstance(output, (str, list)) else json.dumps(output)}))
        case "message":
            made.say(text(item.get("role")), text_of(item))
        case _:
            pass                               # reasoning and what belongs to the provider alone


def _anthropic(body: dict[str, Any]) -> Asked:
    made = _Messages()
    system = text_of({"content": body.get("system")})
    if system:
        made.say("system", system)
    for message in objs(body.get("messages")):
        _anthropic_message(made, text(message.get("role")), message.get("content"))
    own = [t for t in objs(body.get("tools")) if t.get("type", "custom") == "custom"]
    return Asked(
        wire="anthropic", model=text(body.get("model")), stream=body.get("stream") is True, messages=made.list,
        tools=[_function(t.get("name"), t.get("description"), t.get("input_schema")) for t in own],
        max_output_tokens=count(body.get("max_tokens")),
    )  # fmt: skip


def _anthropic_message(made: _Messages, role: str, content: Any) -> None:
    if isinstance(content, str):
        made.say(role, content)
        return
    blocks = objs(content)
    for block in blocks:
        if block.get("type") == "tool_result":
            made.result(block.get("tool_use_id"), text_of({"content": block.get("content")}))
    said = "".join(text(b.get("text")) for b in blocks if b.get("type") == "text")
    calls = [_call(b.get("id"), b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use"]
    if said or role == "assistant":
        made.say(role, said)
    if calls:
        made.calls(calls)
