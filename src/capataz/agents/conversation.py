"""One agent's conversation: what is asked of the model next, what its calls do, when it ends.

It knows ports, limits and tools, not Agno: ``JournaledModel`` lends it to Agno's loop. Everything here is a pure function of the
task and of what the ports answer, so a restarted agent walks the same way through its journal up to the first missing answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from capataz.agents import compaction, history, prompts
from capataz.agents.failure_watch import FailureWatch
from capataz.agents.history import Call, Chat
from capataz.agents.model_client import CallInfo, ClientReply, ModelClient, ProviderFailure
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.catalogue import Tool
from capataz.agents.tools.errors import ToolError, error_reply
from capataz.agents.tools.submit import MAX_REFUSALS, Output
from capataz.contracts.canonical import JsonValue, canonical_text
from capataz.contracts.errors import (
    BudgetExhausted,
    ContextOverflow,
    ForbiddenAccess,
    NotFound,
    OutputInvalid,
    TurnsExhausted,
    UsageError,
)
from capataz.contracts.harness import AgentPorts, AgentTask, ModelReply, ToolReply, ToolSpec
from capataz.contracts.journal import Usage

MAX_EMPTY = 3
AT_ONCE = 8                                    # reads of one turn that run at the same time
Ask = Callable[[list[Chat], list[dict[str, Any]], CallInfo], Awaitable[ClientReply]]


class Granted(Protocol):
    """A tool that is not built in: of the program's own, or of an MCP server."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def writes(self) -> bool: ...
    @property
    def alone(self) -> bool: ...
    @property
    def schema(self) -> dict[str, Any]: ...

    async def call(self, bench: Bench, arguments: dict[str, Any]) -> ToolReply: ...


Offered = Tool | Granted


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one tool call, for the history."""

    call: Call
    content: str
    failed: bool
    ends: bool = False


@dataclass(slots=True)
class ToolSet:
    """What the model is offered; shared by all agents that are offered the same."""

    tools: dict[str, Offered]
    schemas: list[dict[str, Any]]
    digest: str
    chars: int


class Conversation:
    """``history`` is the live list; ``output`` and ``text`` hold the result once it has ended."""

    def __init__(self, task: AgentTask, ports: AgentPorts, client: ModelClient, offered: ToolSet, output: Output | None, bench: Bench, ask: Ask) -> None:
        self.history: list[Chat] = []
        self.text = ""
        self.output: JsonValue = None
        self.turn = 0                          # model calls answered
        self._task = task
        self._ports = ports
        self._client = client
        self._offered = offered
        self._wanted = output
        self._bench = bench
        self._ask = ask
        self._watch = FailureWatch(task.name)
        self._ids: set[str] = set()
        self._pending: list[str] = []          # corrective messages for the next model call
        self._calls = 0
        self._empty = 0
        self._reminded = False
        self._refusals = 0
        self._summaries = 0
        self._cut = ""                         # what to add to an error when the last answer was cut off

    # ---- the model's part ------------------------------------------------------------------------

    async def next_message(self) -> Chat:
        """Asks until the model calls a tool or ends; gives its message (not yet in ``history``)."""
        while True:
            message = await self._answer()
            if message.get("tool_calls"):
                self._empty, self._reminded = 0, False
                return message
            text = message["content"].strip()
            if not text:
                self._nudge()
            elif self._wanted is None:
                problem = await self._ports.accept(turn=self.turn - 1, value=message["content"])
                if problem is None:
                    self.text = message["content"]
                    return message
                self._refuse(problem)
                self.history += [message, history.user(error_reply(problem).content)]
            else:
                self._remind(message)

    def _nudge(self) -> None:
        # An empty message is not put into the history: providers refuse it there.
        self._empty += 1
        if self._empty >= MAX_EMPTY:
            raise OutputInvalid(f"{self._task.name} gave {self._empty} empty answers in a row")
        self.history.append(history.user(prompts.EMPTY))

    def _remind(self, message: Chat) -> None:
        if self._reminded:
            raise OutputInvalid(f"{self._task.name} ended without submit, after a reminder: {message['content'][:200]}")
        self._reminded = True
        self.history += [message, history.user(prompts.REMINDER)]

    async def _answer(self) -> Chat:
        """One model call, its answer cleaned."""
        limit = self._task.limits.max_turns
        if limit and self.turn >= limit:
            raise TurnsExhausted(f"{self._task.name} used all its {limit} turns", turns=self.turn)
        self.history += [history.user(text) for text in self._pending]
        self._pending.clear()
        self.history += [history.user(text) for text in await self._ports.steering(turn=self.turn)]
        reply = await self._call_within_window()
        message = history.assistant(_message_of(reply), self.turn, self._ids)
        cut = isinstance(reply.response, dict) and reply.response.get("finish") == "length"  # pyright: ignore
        self._cut = f"; the answer was cut at {self._task.limits.max_output_tokens} tokens: write less at once" if cut else ""
        self.turn += 1
        return message

    async def _call_within_window(self) -> ModelReply:
        window = self._client.window_tokens
        chosen = await self._ports.select_context(turn=self.turn, messages=list(self.history))
        if chosen is not None:
            return await self._call(history.repaired(history.selected(chosen)))
        if compaction.is_near(self.history, self._offered.chars, self._task.limits.max_output_tokens, window):
            await self._shorten()
        try:
            return await self._call(history.repaired(self.history))
        except ContextOverflow:
            await self._shorten(refused=True)
        return await self._call(history.repaired(self.history))

    async def _shorten(self, *, refused: bool = False) -> None:
        """References first; a summary when they are not enough; the second need of a summary ends the agent."""
        before = history.size(self.history)
        self.history[:] = compaction.with_references(self.history)
        limits, window = self._task.limits, self._client.window_tokens
        enough = not compaction.is_near(self.history, self._offered.chars, limits.max_output_tokens, window)
        if enough and not (refused and history.size(self.history) > before * 0.7):
            return
        if self._summaries:
            raise ContextOverflow(f"the conversation of {self._task.name} outgrew the model's window a second time", turns=self.turn)
        self._summaries += 1
        asked = compaction.to_summarise(self.history, window, limits.max_output_tokens)
        request = [history.user(prompts.summary_request(prompts.rendered(asked)))]
        reply = await self._call(request, tools=False)
        summary = history.clean_text(_message_of(reply).get("content"))
        self.history[:] = compaction.summarised(self.history, summary or "(no summary was given)")

    async def _call(self, messages: list[Chat], *, tools: bool = True) -> ModelReply:
        """The journaled model call."""
        task = self._task
        messages = [history.sent(m) for m in messages]
        info = CallInfo(agent=task.name, turn=self.turn, run_id=task.run_id, data=task.data, prompt=_first_user(messages))
        schemas = self._offered.schemas if tools else []

        async def perform() -> ModelReply:
            try:
                reply = await self._ask(messages, schemas, info)
            except ProviderFailure as failure:  # only "context" comes out of the retries
                raise ContextOverflow(f"{task.model}: {failure.message}", status=failure.status) from failure
            return ModelReply(response=_journal_form(reply), usage=reply.usage)

        chars = history.size(messages) + (self._offered.chars if tools else 0)
        return await self._ports.model_call(
            turn=self.turn,
            request={"model": task.model, "messages": messages, "tools": self._offered.digest if tools else ""},
            estimate=Usage(input_tokens=compaction.tokens(chars), output_tokens=task.limits.max_output_tokens, model_calls=1),
            perform=perform,
        )

    # ---- the tools' part -------------------------------------------------------------------------

    async def run_calls(self, calls: list[Call]) -> list[Answer]:
        """Answers all calls of the last message, in call order.

        Calls that can write run one after the other in call order, the reads between two of them at once, ``submit`` last.
        """
        turn = self.turn - 1
        self._count(calls)
        answers: dict[int, Answer] = {}
        batch: list[Call] = []
        for call in calls:
            if call.name == "submit":
                continue
            if len(batch) >= AT_ONCE:
                await self._batch(turn, batch, answers)
                batch = []
            tool = self._offered.tools.get(call.name)
            if tool is not None and (tool.writes or tool.alone):
                await self._batch(turn, batch, answers)
                await self._batch(turn, [call], answers)
                batch = []
            else:
                batch.append(call)
        await self._batch(turn, batch, answers)
        for call in calls:
            if call.name == "submit":
                answers[call.position] = await self._submit(turn, call, any(a.ends for a in answers.values()))
        return [answers[call.position] for call in calls]

    def _count(self, calls: list[Call]) -> None:
        limit = self._task.limits.max_tool_calls
        self._calls += sum(call.name != "submit" for call in calls)
        if limit and self._calls > limit:
            raise BudgetExhausted(f"{self._task.name} used all its {limit} tool calls", account=self._task.name, dimension="tool_calls")

    async def _batch(self, turn: int, calls: list[Call], answers: dict[int, Answer]) -> None:
        if not calls:
            return
        before = await self._ports.changed()
        replies = await _all([self._run(turn, call) for call in calls])
        after = await self._ports.changed() if any(reply.failed for reply in replies) else before
        for call, reply in zip(calls, replies, strict=True):
            warning = self._watch.saw(turn, call, reply, before, after)
            if warning is not None:
                self._pending.append(warning)
            answers[call.position] = Answer(call, reply.content, reply.failed)

    async def _run(self, turn: int, call: Call) -> ToolReply:
        tool = self._offered.tools.get(call.name)
        if tool is None:
            return error_reply(f"there is no tool {call.name}; you have {self._names()}")
        if call.arguments is None:
            return error_reply(call.problem + self._cut)
        arguments = call.arguments
        return await self._ports.tool_call(
            turn=turn,
            position=call.position,
            name=call.name,
            arguments=history.clean_json(arguments),
            writes=tool.writes and self._task.type == "general",
            perform=lambda: self._perform(tool, arguments),
        )

    def _names(self) -> str:
        return ", ".join(schema["function"]["name"] for schema in self._offered.schemas) or "none"

    async def _perform(self, tool: Offered, arguments: dict[str, Any]) -> ToolReply:
        """Errors that the model can mend become its data; a broken sandbox does not."""
        try:
            reply = await tool.call(self._bench, arguments)
        except ToolError as error:
            return error_reply(str(error), refused=error.refused)
        except ForbiddenAccess as error:
            return error_reply(str(error), refused="path")
        except (NotFound, UsageError) as error:
            return error_reply(str(error))
        content, summary = history.clean_text(reply.content), history.clean_text(reply.summary)
        return reply if (content, summary) == (reply.content, reply.summary) else replace(reply, content=content, summary=summary)

    # ---- the end ---------------------------------------------------------------------------------

    async def _submit(self, turn: int, call: Call, over: bool) -> Answer:
        if over:
            return Answer(call, "error: not looked at, an earlier submit was accepted", True)
        if self._wanted is None:
            return await self._end_text(turn, call)
        problem = (call.problem and call.problem + self._cut) or self._wanted.problems(call.arguments or {})
        if problem is None:
            value = history.clean_json(self._wanted.value(call.arguments or {}))
            problem = await self._ports.accept(turn=turn, value=value)
            if problem is None:
                self.output = value
                self.text = _last_text(self.history)
                return Answer(call, "accepted", False, ends=True)
        self._refuse(problem)
        return Answer(call, error_reply(problem).content, True)

    def _refuse(self, problem: str) -> None:
        """Counts a result that was not taken. Raises ``OutputInvalid`` at the last one."""
        self._refusals += 1
        if self._refusals >= MAX_REFUSALS:
            raise OutputInvalid(f"{self._task.name} submitted {self._refusals} times without a valid output: {problem}", refusals=self._refusals)

    async def _end_text(self, turn: int, call: Call) -> Answer:
        """A text agent has no ``submit``; a model that calls it all the same has ended, and its fields are the text."""
        fields = call.arguments if call.arguments is not None else {"text": call.raw}
        values = list(fields.values())
        only = values[0] if len(values) == 1 else None
        text = history.clean_text(only) if isinstance(only, str) else canonical_text(history.clean_json(fields))
        problem = await self._ports.accept(turn=turn, value=text)
        if problem is not None:
            self._refuse(problem)
            return Answer(call, error_reply(problem).content, True)
        self.text = text
        return Answer(call, "accepted", False, ends=True)


def _message_of(reply: ModelReply) -> Chat:
    response = reply.response
    return response["message"] if isinstance(response, dict) and isinstance(response.get("message"), dict) else {"content": ""}  # pyright: ignore


def _journal_form(reply: ClientReply) -> JsonValue:
    return {"message": history.clean_json(reply.message), "finish": reply.finish}


def _first_user(messages: list[Chat]) -> str:
    return next((m["content"] for m in messages if m["role"] == "user"), "")


def _last_text(messages: list[Chat]) -> str:
    last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    return (last or {}).get("content") or ""


async def _all(work: list[Coroutine[Any, Any, ToolReply]]) -> list[ToolReply]:
    """Runs at once; the first error (or our own cancellation) cancels the rest and is raised when they have ended."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task in done:
                task.result()                  # raises the first error in call order
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
