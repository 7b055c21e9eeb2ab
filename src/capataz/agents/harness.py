"""The ``agno`` harness: an ``agno.agent.Agent`` over ``JournaledModel``, with our tools and limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from capataz.agents import prompts
from capataz.agents.conversation import Conversation, Granted, Offered, ToolSet
from capataz.agents.history import Chat, clean_text
from capataz.agents.model_client import CallInfo, ClientReply, ModelClient
from capataz.agents.retries import reply_with_retries
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.catalogue import catalogue, choose
from capataz.agents.tools.own import OwnTool
from capataz.agents.tools.paths import WriteScope
from capataz.agents.tools.submit import Output, output_of
from capataz.contracts.canonical import digest
from capataz.contracts.clock import Clock, SystemClock
from capataz.contracts.errors import AgentFailed, CapatazError, DeadlineExceeded, UsageError
from capataz.contracts.harness import AgentOutcome, AgentPorts, AgentTask, AgentType

if TYPE_CHECKING:
    from capataz.agents.journaled_model import JournaledModel


class AgnoHarness:
    """``models`` gives the client of a full model id (``provider/id``, ``scripted:PATH.py``) and may raise ``ProviderRejected``,
    ``UsageError`` or ``ScriptError``. Agno is imported at the first run."""

    name = "agno"

    def __init__(self, models: Callable[[str], ModelClient], clock: Clock | None = None) -> None:
        self._models = models
        self._clock = clock or SystemClock()

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        """Raises the errors of ``contracts.harness.Harness.run`` and ``DeadlineExceeded`` after ``limits.wall_s``."""
        work = self._converse(task, ports)
        if not task.limits.wall_s:
            return await work
        return await self._within(task.limits.wall_s, task.name, work)

    async def _within(self, seconds: float, name: str, work: Any) -> AgentOutcome:
        running = asyncio.ensure_future(work)
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({running, alarm}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            raise DeadlineExceeded(f"{name} did not end within {seconds:g} s")
        finally:
            for future in (running, alarm):
                future.cancel()
            await asyncio.gather(running, alarm, return_exceptions=True)

    async def _converse(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        from capataz.agents.journaled_model import Ended, JournaledModel

        bench = Bench(ports, WriteScope(task.write_globs, task.protected), task.name, task.limits.command_timeout_s)
        async with _servers(task, bench) as more:
            talk = self._conversation(task, ports, bench, more)
            model = JournaledModel(talk, task.model)
            try:
                await _loop(model, task)
            except Ended:
                if model.error is not None:
                    raise _typed(model.error, task) from None
        return AgentOutcome(text=talk.text, output=talk.output, turns=talk.turn, messages=list(model.messages))

    def _conversation(self, task: AgentTask, ports: AgentPorts, bench: Bench, more: Sequence[Granted]) -> Conversation:
        client = self._models(task.model)
        output = output_of(task.output_schema) if task.output_schema is not None else None
        offered = _with_own(offer(task.type, task.tools, task.granted, output), [*map(OwnTool, task.own_tools), *more])
        deadline = self._clock.now() + task.limits.wall_s if task.limits.wall_s else None

        async def ask(messages: list[Chat], tools: list[dict[str, Any]], call: CallInfo) -> ClientReply:
            return await reply_with_retries(
                client, messages=messages, tools=tools, output_schema=task.output_schema, max_output_tokens=task.limits.max_output_tokens,
                call=call, emit=ports.emit, clock=self._clock, deadline=deadline,
            )

        return Conversation(task, ports, client, offered, output, bench, ask)


@lru_cache(maxsize=512)
def offer(type: AgentType, names: tuple[str, ...] | None, granted: tuple[str, ...], output: Output | None) -> ToolSet:
    """What an agent is offered. Raises ``UsageError`` for unknown tool names."""
    tools = choose(type, names, granted)
    schemas = [tool.schema for tool in tools.values()] + ([output.tool] if output is not None else [])
    return _tool_set(dict(tools), schemas)


def _tool_set(tools: dict[str, Offered], schemas: list[dict[str, Any]]) -> ToolSet:
    return ToolSet(tools, schemas, digest(schemas), len(json.dumps(schemas)))


def _with_own(offered: ToolSet, own: list[Granted]) -> ToolSet:
    """Raises ``UsageError`` for a tool with a name that is taken."""
    if not own:
        return offered
    names = [tool.spec.name for tool in own]
    taken = sorted({name for name in names if name in {*catalogue(), "submit"} or names.count(name) > 1})
    if taken:
        raise UsageError(f"{', '.join(taken)} is the name of a built-in tool, or of two; rename the program's own")
    return _tool_set({**offered.tools, **{tool.spec.name: tool for tool in own}}, [*(tool.schema for tool in own), *offered.schemas])


@asynccontextmanager
async def _servers(task: AgentTask, bench: Bench) -> AsyncIterator[Sequence[Granted]]:
    """The tools of the agent's MCP servers, while they are connected."""
    if not task.mcp:
        yield ()
        return
    from capataz.agents.mcp.tools import Servers

    async with Servers(task, bench) as tools:
        yield tools


def _system_message(task: AgentTask) -> str:
    """Ours, or that of the Agno agent which the program brought, with how to end."""
    if task.foreign is None:
        return prompts.system_message(task.type, task.output_schema is not None, task.write_globs)
    return "\n\n".join(part for part in (str(task.foreign.get("system") or ""), prompts.ending(task.output_schema is not None)) if part)


async def _loop(model: JournaledModel, task: AgentTask) -> None:
    """Agno's own loop; it always ends by ``Ended``."""
    from agno.agent import Agent

    agent = Agent(
        id="capataz",
        model=model,
        system_message=clean_text(_system_message(task)),
        # No tools=[Function(...)]: Agno copies every Function for every run, 0.1 ms each, only to hand requests back to the model
        # object; JournaledModel offers the tools and answers their calls itself.
        telemetry=False,
        resolve_in_context=False,
        retries=0,
    )
    # Ids of ours: those that Agno would invent cost a tenth of its part.
    run = await agent.arun(clean_text(prompts.first_message(task)), stream=False, run_id=f"{task.run_id}/{task.key}", session_id=task.key)
    raise AgentFailed(f"{task.name}: the harness ended by itself with status {run.status}: {run.content}")


def _typed(error: BaseException, task: AgentTask) -> BaseException:
    """Our errors, signals and cancellation as they are; anything else is the agent's failure, with its type named."""
    if isinstance(error, CapatazError) or not isinstance(error, Exception):
        return error
    failure = AgentFailed(f"{task.name} failed: {type(error).__name__}: {error}", type=type(error).__name__)
    failure.__cause__ = error
    return failure
