"""``run(agent=...)``: finds the adapter of another framework's agent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capataz.contracts.errors import CapatazError, ProgramLoadError, UsageError
from capataz.contracts.foreign import ForeignAgent

_ADAPTERS = {"agno.agent": "capataz.agents.foreign.agno_agent", "langgraph": "capataz.agents.foreign.graph"}
"""By the package of the agent's class. By name: the frameworks are loaded only by programs that use them, and stay in their room."""


def adapted(agent: Any, site: str) -> ForeignAgent:
    """Raises ``UsageError`` for what is no agent that can be run, and ``ProgramLoadError`` for one that wants what is not there."""
    for cls in type(agent).__mro__:
        for package, adapter in _ADAPTERS.items():
            if cls.__module__ == package or cls.__module__.startswith(f"{package}."):
                try:
                    return import_module(adapter).adapt(agent)
                except CapatazError as error:
                    raise type(error)(f"{site}: {error.message}") from error
                except ImportError as error:
                    raise ProgramLoadError(f"{site}: the agent cannot be used: {error}") from error
    raise UsageError(f"{site}: agent= takes an Agno agent or a compiled LangGraph graph, not {type(agent).__module__}.{type(agent).__name__}")
