"""Capataz: the foreman of coding agents. Programs are ordinary async Python; this is their authoring surface.

Everything is loaded when it is first used, so that ``import capataz`` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; `typing` itself would cost 20 ms

if TYPE_CHECKING:
    from capataz.vm.epochs import loop
    from capataz.vm.handle import Handle
    from capataz.vm.limits import Budget, budget
    from capataz.vm.mcp import McpServer, mcp_server
    from capataz.vm.migrations import migrate
    from capataz.vm.parallel import fan_out, race
    from capataz.vm.people import ask, messages, receive, tell
    from capataz.vm.program import LoadedProgram, Program, load, program
    from capataz.vm.results import AgentResult, Answer, Failure, Message
    from capataz.vm.running import run, spawn
    from capataz.vm.scopes import scope
    from capataz.vm.staterules import Transitions
    from capataz.vm.states import State, state
    from capataz.vm.tools import Tool, tool
    from capataz.vm.verbs import artifact, checkpoint, now, sleep, step

_HOMES = {
    "run": "running", "spawn": "running", "Handle": "handle", "Budget": "limits", "budget": "limits",
    "fan_out": "parallel", "race": "parallel", "ask": "people", "messages": "people", "receive": "people", "tell": "people",
    "LoadedProgram": "program", "Program": "program", "load": "program", "program": "program", "AgentResult": "results",
    "Answer": "results", "Failure": "results", "Message": "results", "scope": "scopes", "artifact": "verbs",
    "State": "states", "state": "states", "Transitions": "staterules", "migrate": "migrations", "checkpoint": "verbs", "now": "verbs",
    "loop": "epochs", "sleep": "verbs", "step": "verbs", "Tool": "tools", "tool": "tools",
    "McpServer": "mcp", "mcp_server": "mcp",
}  # fmt: skip

__all__ = [
    "AgentResult",
    "Answer",
    "Budget",
    "Failure",
    "Handle",
    "LoadedProgram",
    "McpServer",
    "Message",
    "Program",
    "State",
    "Tool",
    "Transitions",
    "artifact",
    "ask",
    "budget",
    "checkpoint",
    "fan_out",
    "load",
    "loop",
    "mcp_server",
    "messages",
    "migrate",
    "now",
    "program",
    "race",
    "receive",
    "run",
    "scope",
    "sleep",
    "spawn",
    "state",
    "step",
    "tell",
    "tool",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'capataz' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"capataz.vm.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
