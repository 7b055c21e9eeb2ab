"""What a script of the scripted model has in scope: ``tool say submit fail raw sleep_s``, and the ``call`` it is given."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from capataz.contracts.errors import ScriptError

DEFAULT_TOKENS = (1_000, 100)
KINDS = ("http", "stall", "reset", "truncated", "context")


@dataclass(slots=True)
class Said:
    """One answer of a script, or a part of one."""

    kind: Literal["tool", "say", "fail", "raw"]
    name: str = ""
    arguments: str = ""
    text: str = ""
    message: dict[str, Any] = field(default_factory=dict[str, Any])
    failure: dict[str, Any] = field(default_factory=dict[str, Any])
    usage: tuple[int, int] | None = None
    delay_s: float = 0.0

    def with_usage(self, input: int, output: int) -> Said:
        """The tokens that this answer reports."""
        self.usage = (_tokens(input), _tokens(output))
        return self


@dataclass(slots=True)
class Slept:
    """``sleep_s(seconds, then=...)``."""

    seconds: float
    then: Any
    usage: tuple[int, int] | None = None

    def with_usage(self, input: int, output: int) -> Slept:
        self.usage = (_tokens(input), _tokens(output))
        return self


def _tokens(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ScriptError(f"with_usage takes two whole numbers of tokens, not {count!r}")
    return count


def tool(name: str, /, **arguments: Any) -> Said:
    try:
        return Said("tool", name=name, arguments=json.dumps(arguments))
    except (TypeError, ValueError, RecursionError) as error:
        raise ScriptError(f"tool({name!r}, ...): the arguments are no JSON data ({error})") from None


def say(text: str) -> Said:
    return Said("say", text=str(text))


def submit(**fields: Any) -> Said:
    return tool("submit", **fields)


def fail(status: int | None = None, retry_after: float | None = None, kind: str = "http") -> Said:
    if kind not in KINDS:
        raise ScriptError(f"fail(kind={kind!r}): one of {', '.join(KINDS)}")
    return Said("fail", failure={"kind": kind, "status": status, "retry_after_s": retry_after})


def raw(message: dict[str, Any]) -> Said:
    if not isinstance(message, dict):          # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScriptError("raw(...) takes an assistant message in OpenAI chat form, a dict")
    try:
        return Said("raw", message=json.loads(json.dumps(message)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ScriptError(f"raw(...): the message is no JSON data ({error})") from None


def sleep_s(seconds: float, then: Any) -> Slept:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e6:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScriptError(f"sleep_s takes seconds, not {seconds!r}")
    return Slept(float(seconds), then)


SCOPE: dict[str, Any] = {"tool": tool, "say": say, "submit": submit, "fail": fail, "raw": raw, "sleep_s": sleep_s}


class Call:
    """What ``respond`` is given. Copies are made when looked at, so a script cannot change what others see."""

    def __init__(self, *, agent: str, turn: int, attempt: int, prompt: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], output_schema: dict[str, Any] | None, data: dict[str, Any] | None, run_id: str) -> None:
        self.agent = agent
        self.turn = turn
        self.attempt = attempt
        self.prompt = prompt
        self.run = run_id
        self._messages = messages
        self._tools = tools
        self._schema = output_schema
        self._data = data
        self._copies: dict[str, Any] = {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._once("messages", lambda: [_shown(m) for m in self._messages])

    @property
    def tools(self) -> list[str]:
        return self._once("tools", lambda: [t["function"]["name"] for t in self._tools])

    @property
    def output_schema(self) -> dict[str, Any] | None:
        return self._once("schema", lambda: copy.deepcopy(self._schema))

    @property
    def data(self) -> dict[str, Any]:
        return self._once("data", lambda: copy.deepcopy(self._data or {}))

    def _once(self, name: str, make: Any) -> Any:
        if name not in self._copies:
            self._copies[name] = make()
        return self._copies[name]

    def __repr__(self) -> str:
        return f"<call {self.agent} turn {self.turn} attempt {self.attempt}>"


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    """``role``, ``content``, ``tool_calls``, ``tool_name``; each call also with ``name`` and parsed ``arguments`` beside the chat form."""
    calls = [_call(c) for c in message.get("tool_calls") or ()]
    return {"role": message["role"], "content": message.get("content"), "tool_calls": calls or None, "tool_name": message.get("tool_name")}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = {}
    return {**copy.deepcopy(call), "name": function["name"], "arguments": arguments}
