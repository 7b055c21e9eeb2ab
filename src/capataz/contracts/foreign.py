"""Agents that a program brings whole (``run(agent=...)``): what an adapter makes of one, in the program's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capataz.contracts.canonical import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTool:
    """A function of the foreign agent. ``invoke`` runs in a child of the program's process; it may give an awaitable."""

    name: str
    description: str
    parameters: dict[str, Any]
    invoke: Callable[[Mapping[str, Any]], Any]
    approval: bool = False                     # a person is asked before each call


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAgent:
    """``harness``: who carries it on in the worker. ``told``: what identifies it and what that harness needs to know.
    ``model`` and ``output``: its own, used where ``run`` gives none."""

    harness: str
    told: dict[str, JsonValue]
    tools: tuple[ForeignTool, ...]
    model: str | None = None
    output: Any = None
