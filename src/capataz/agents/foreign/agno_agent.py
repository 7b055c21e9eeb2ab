"""An Agno agent of a program's own: its system message, its tools and its model, for our own loop over them.

What runs outside of a model call or a tool call would escape the journal, so an agent that wants it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isasyncgen, isgenerator
from typing import Any

from agno.agent import Agent
from agno.agent._messages import get_system_message
from agno.agent._tools import parse_tools
from agno.models.base import Model
from agno.run import RunContext
from agno.session import AgentSession
from agno.tools.function import Function, FunctionCall

from capataz.contracts.errors import StepFailed, UsageError
from capataz.contracts.foreign import ForeignAgent, ForeignTool

_REFUSED = (
    "db", "knowledge", "knowledge_retriever", "memory_manager", "enable_agentic_memory", "update_memory_on_run", "add_memories_to_context",
    "session_state", "enable_agentic_state", "enable_session_summaries", "add_history_to_context", "pre_hooks", "post_hooks", "tool_hooks",
    "reasoning_model", "reasoning_agent", "parser_model", "output_model", "learning", "skills", "filesystem", "fallback_models",
    "additional_input", "input_schema", "add_datetime_to_context", "add_location_to_context", "followups",
)
_PROVIDERS = {"OpenAIChat": "openai", "OpenAIResponses": "openai", "Claude": "anthropic", "Gemini": "google"}


def adapt(agent: Agent) -> ForeignAgent:
    """Raises ``UsageError`` for an agent whose parts the journal would not see."""
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"agent= takes an Agno Agent, not {type(agent).__name__}")
    wanted = [name for name in _REFUSED if getattr(agent, name, None)]
    if wanted:
        raise UsageError(f"the Agno agent {agent.name or ''} uses {', '.join(wanted)}, which would work outside the journal; leave it out and do it in the program")
    functions = _functions(agent)
    return ForeignAgent(
        harness="agno", told={"system": _system_message(agent, functions)}, tools=tuple(_tool(function) for function in functions),
        model=_model(agent), output=agent.output_schema,
    )


def _functions(agent: Agent) -> list[Function]:
    given: Any = agent.tools or []
    if callable(given):
        raise UsageError("the tools of the Agno agent are made by a function; give a list")
    parsed = parse_tools(agent, list(given), _Nobody(), async_mode=True)
    functions = [function for function in parsed if isinstance(function, Function)]
    if len(functions) != len(parsed):
        raise UsageError("the Agno agent has tools that its provider runs; they cannot be journaled")
    for function in functions:
        if function.requires_user_input or function.external_execution:
            raise UsageError(f"tool {function.name} of the Agno agent wants user input or runs elsewhere; use requires_confirmation, or ask_human")
        if function.pre_hook or function.post_hook or function.tool_hooks:
            raise UsageError(f"tool {function.name} of the Agno agent has hooks, which would work outside the journal")
    return functions


def _tool(function: Function) -> ForeignTool:
    async def invoke(arguments: Mapping[str, Any]) -> Any:
        called = FunctionCall(function=function, arguments=dict(arguments), call_id="capataz")
        done = await called.aexecute()
        if done.status != "success":
            raise StepFailed(str(done.error or called.error or "failed"))
        if isgenerator(done.result) or isasyncgen(done.result):
            raise StepFailed("a tool that yields cannot be journaled; let it return")
        return getattr(done.result, "content", done.result)

    asks = bool(function.requires_confirmation) or function.approval_type == "required"
    return ForeignTool(
        name=function.name, description=function.description or "", parameters=function.parameters, invoke=invoke, approval=asks
    )


def _system_message(agent: Agent, functions: list[Function]) -> str:
    own = agent.model
    agent.model = own or _Nobody()             # building the message asks the model for what it has to add
    try:
        message = get_system_message(
            agent, AgentSession(session_id="capataz"), RunContext(run_id="capataz", session_id="capataz"), tools=list(functions)
        )
    finally:
        agent.model = own
    return str(message.content) if message is not None else ""


def _model(agent: Agent) -> str | None:
    """Our name of its model; None where it has none, or one that only its program knows."""
    model = agent.model
    provider = next((_PROVIDERS[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in _PROVIDERS), None)
    if model is None or provider is None or getattr(model, "base_url", None):
        return None
    return f"{provider}/{model.id}"


class _Nobody(Model):
    """Stands for a model while a message is built."""

    def __init__(self) -> None:
        super().__init__(id="capataz")

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    invoke = ainvoke = invoke_stream = ainvoke_stream = _parse_provider_response = _parse_provider_response_delta = _unused
