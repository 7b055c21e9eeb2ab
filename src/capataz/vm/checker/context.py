"""What every family of rules works on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Protocol

from capataz.vm.checker.finding import Finding, Place
from capataz.vm.checker.modules import Project, Scope
from capataz.vm.checker.names import Names
from capataz.vm.checker.reach import Reach
from capataz.vm.checker.surface import Surface, Verb
from capataz.vm.checker.types import Types


class ModelBook(Protocol):
    """What is known of models outside this room."""

    def problem(self, model: str) -> str | None:
        """What is wrong with a model that a program names: unknown, or without a price. None: nothing."""
        ...

    def worst_call_usd(self, model: str) -> float | None:
        """The most that one call can cost: a full context window at the dearer rate. None: not known."""
        ...


class Context:
    """The closure with all that is known of it. ``models`` None: nothing is said about models."""

    def __init__(self, project: Project, surface: Surface, models: ModelBook | None, folder: str) -> None:
        self.project = project
        self.surface = surface
        self.models = models
        self.folder = folder
        self.names = Names(project, surface)
        self.reach = Reach(project, self.names)
        self.types = Types(self.names)

    def finding(self, code: str, node: ast.AST, scope: Scope, message: str, fix: str) -> Finding:
        place = Place(scope.module.shown, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)
        return Finding(place, code, message, fix)

    def calls(self, scopes: set[Scope] | None = None) -> Iterator[tuple[ast.Call, Scope]]:
        """All calls, or those of some scopes, in the order of the modules."""
        for scope in self.project.scopes():
            if scopes is None or scope in scopes:
                for node in scope.nodes:
                    if isinstance(node, ast.Call):
                        yield node, scope

    def program_calls(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Calls in code that runs in the program process."""
        return self.calls(self.reach.program)

    def dotted(self, call: ast.Call, scope: Scope) -> str | None:
        return self.names.dotted(call.func, scope)

    def verb(self, call: ast.Call, scope: Scope) -> Verb | None:
        return self.surface.verb(self.dotted(call, scope))

    def is_agent(self, call: ast.Call, scope: Scope) -> bool:
        """``run`` or ``spawn``, of an agent or of a program: what it gives was decided by a model."""
        return self.dotted(call, scope) in ("capataz.run", "capataz.spawn")

    def child(self, call: ast.Call, scope: Scope) -> Scope | None:
        """The function that ``run`` or ``spawn`` gets as its first argument."""
        if not self.is_agent(call, scope) or not call.args:
            return None
        return self.names.function(call.args[0], scope)
