"""Agno's side of a conversation: a ``Model`` whose calls and tools are journaled.

Agno owns the loop. It gets our model's answers and our tools' results; what it would do by itself (call a provider, run
functions in any order, turn errors into a status) does not happen. The end leaves its loop as ``Ended``, a ``BaseException``:
Agno turns ordinary exceptions into a status and prints them, and after a normal end it computes session records that nobody reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse, ModelResponseEvent, ToolExecution

from capataz.agents.conversation import Answer, Conversation
from capataz.agents.history import Call, Chat, calls_of, tool_message


class Ended(BaseException):
    """The conversation is over: see ``JournaledModel.error`` and ``messages``."""


class JournaledModel(Model):
    """One agent's model. ``error``: what ended the conversation, if it was no result; ``messages``: all of it."""

    def __init__(self, talk: Conversation, model: str) -> None:
        super().__init__(id=model, name="capataz", provider="capataz")
        self.talk = talk
        self.error: BaseException | None = None
        self.messages: list[Chat] = []
        self._live: list[Message] = []         # Agno's own list: it goes on growing there

    def __deepcopy__(self, memo: dict[int, Any]) -> JournaledModel:
        return self

    async def ainvoke(self, messages: list[Message], **_: Any) -> ModelResponse:  # type: ignore[override]
        self._live = messages
        try:
            self.talk.history = [to_chat(message) for message in messages]
            message = await self.talk.next_message()
        except BaseException as error:
            self.error = error
            raise Ended from None
        if not message.get("tool_calls"):
            self.messages = [*self.talk.history, message]
            raise Ended
        _mirror(messages, self.talk.history)
        extra = {k: v for k, v in message.items() if k not in ("role", "content", "tool_calls")}
        return ModelResponse(role="assistant", content=message["content"], tool_calls=message.get("tool_calls") or [], provider_data=extra or None)

    def get_function_calls_to_run(self, assistant_message: Message, messages: list[Message], functions: Any = None) -> list[Call]:  # type: ignore[override]
        """All calls, unknown names and bad JSON included: they are answered in their place among the others."""
        return calls_of(to_chat(assistant_message))

    async def arun_function_calls(  # type: ignore[override]
        self, function_calls: list[Call], function_call_results: list[Message], **_: Any
    ) -> AsyncIterator[ModelResponse]:
        try:
            answers = await self.talk.run_calls(function_calls)
        except BaseException as error:
            self.error = error
            raise Ended from None
        if any(answer.ends for answer in answers):
            results = [tool_message(answer.call, answer.content) for answer in answers]
            self.messages = [*(to_chat(message) for message in self._live), *results]
            raise Ended
        for answer in answers:
            function_call_results.append(_result(answer))
            yield _event(answer)

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("only the asynchronous, unstreamed way is journaled")

    invoke = invoke_stream = ainvoke_stream = _parse_provider_response = _parse_provider_response_delta = _unused


def _result(answer: Answer) -> Message:
    return Message(
        role="tool",
        content=answer.content,
        tool_call_id=answer.call.id,
        tool_name=answer.call.name,
        tool_call_error=answer.failed,
    )


def _event(answer: Answer) -> ModelResponse:
    execution = ToolExecution(
        tool_call_id=answer.call.id, tool_name=answer.call.name, tool_args=answer.call.arguments, tool_call_error=answer.failed, result=answer.content
    )
    return ModelResponse(event=ModelResponseEvent.tool_call_completed.value, tool_executions=[execution])


def to_chat(message: Message) -> Chat:
    """The message in OpenAI chat form; ours come back as the very dict they were made from."""
    known = (message.__pydantic_extra__ or {}).get("chat")
    if known is not None:
        return known
    chat: Chat = {"role": message.role, "content": message.content or ""}
    if message.role == "tool":
        chat |= {"tool_call_id": message.tool_call_id, "tool_name": message.tool_name}
    elif message.role == "assistant":
        chat = {**(message.provider_data or {}), **chat}
        if message.tool_calls:
            chat["tool_calls"] = message.tool_calls
    return chat


def _mirror(messages: list[Message], history: list[Chat]) -> None:
    """Brings Agno's live list to what the conversation made of it (steering, reminders, compaction)."""
    if len(messages) == len(history) and all(to_chat(m) == h for m, h in zip(messages, history, strict=True)):
        return
    messages[:] = [_from_chat(chat) for chat in history]


def _from_chat(chat: Chat) -> Message:
    return Message(
        role=chat["role"], content=chat.get("content"), tool_calls=chat.get("tool_calls"), tool_call_id=chat.get("tool_call_id"),
        tool_name=chat.get("tool_name"), chat=chat,  # type: ignore[call-arg]
    )
