"""The port between a harness and a model, and the split of work around it.

* A ``ModelClient`` makes exactly one request and has no retries: ``ScriptedClient`` (agents/scripted.py) and the provider
  clients (agents/providers) implement it.
* ``agents/retries.py`` holds the one retry policy::

      async def reply_with_retries(client, *, messages, tools, output_schema, max_output_tokens, call, emit, clock, deadline) -> ClientReply

  It raises ``call.attempt`` by one for each attempt, emits ``model.failed`` (``emit(type, **data)``, as ``AgentPorts.emit``),
  never waits past ``deadline`` (``clock.now()`` seconds, None: none) and turns failures into ``ProviderRejected`` or
  ``ProviderUnavailable``. ``ProviderFailure(kind="context")`` and every ``CapatazError`` pass through unchanged.
* The harness journals around it: ``ports.model_call(perform=lambda: reply_with_retries(...))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from capataz.contracts.canonical import JsonValue
from capataz.contracts.journal import Usage

FailureKind = Literal["http", "stall", "reset", "truncated", "context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """Whose call it is. ``turn`` counts the agent's model calls from 0, ``attempt`` the tries of this one from 0."""

    agent: str
    turn: int
    run_id: str
    data: dict[str, JsonValue] | None
    prompt: str                                # the first user message
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReply:
    """``message``: the assistant message in OpenAI chat form, JSON data only.

    Keys besides ``role``, ``content`` and ``tool_calls`` (reasoning, signatures) come back verbatim in the same message of
    later calls. ``tool_calls[i]["function"]["arguments"]`` is the provider's text as it came, valid JSON or not.
    ``finish``: ``stop``, ``length``, ``tool_calls`` or the provider's own word.
    """

    message: dict[str, Any]
    usage: Usage                               # tokens only
    finish: str = "stop"


class ProviderFailure(Exception):
    """One request failed. ``kind`` "http" has ``status``; "context": the request does not fit the model's window."""

    def __init__(self, kind: FailureKind, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class ModelClient(Protocol):
    """One model. Shared by all agents of a worker; must not keep anything of a call."""

    model: str                                 # provider/id or scripted:PATH.py
    window_tokens: int                         # 0: unknown, then compaction waits for the provider's refusal

    async def reply(
        self,
        *,
        messages: list[dict[str, Any]],        # roles system, user, assistant, tool; a tool message also has ``tool_name``
        tools: list[dict[str, Any]],           # [{"type": "function", "function": {"name", "description", "parameters"}}]
        output_schema: dict[str, Any] | None,  # for information: the output comes through the ``submit`` tool
        max_output_tokens: int,
        call: CallInfo,
    ) -> ClientReply:
        """Raises ``ProviderFailure``, or a ``CapatazError`` that no retry can mend (``ScriptError``, ``ProviderRejected``)."""
        ...
