"""Which code runs where: in the program, in a step's process, or in a pure callback."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.modules import Project, Scope
from capataz.vm.checker.names import Names

PURE_ARGUMENTS = {"capataz.run": ("accept", "context"), "capataz.spawn": ("accept", "context"), "capataz.fan_out": ("key",)}


class Reach:
    """``program``: scopes that run in the program process; ``steps``: in a step or as a tool, with what makes it one;
    ``pure``: callbacks that must not use a verb, with what each is."""

    def __init__(self, project: Project, names: Names) -> None:
        self._project = project
        self._names = names
        self.program: set[Scope] = set()
        self.steps: dict[Scope, ast.AST] = {}
        self.pure: dict[Scope, str] = {}
        self._attributes: set[str] = set()
        self._classes: set[ast.ClassDef] = set()
        self._step_functions: set[ast.AST] = set()
        self._find_callbacks()
        self._spread_program()
        self._spread_steps()

    def programs(self) -> list[Scope]:
        """All programs of the closure, in the order of their modules."""
        return [scope for scope in self._project.scopes() if is_program(scope, self._names)]

    # ---- callbacks -----------------------------------------------------------------------------

    def _find_callbacks(self) -> None:
        for scope in self._project.scopes():
            decorator = decorated(scope, self._names, "capataz.tool")
            if decorator is not None:
                self.steps[scope] = decorator
            for node in scope.nodes:
                if isinstance(node, ast.Call):
                    self._callback(node, scope)

    def _callback(self, call: ast.Call, scope: Scope) -> None:
        verb = self._names.dotted(call.func, scope)
        if verb == "capataz.step":
            function = step_function(call)
            if function is not None:
                self._step_functions.add(function)
                target = self._names.function(function, scope)
                if target is not None:
                    self.steps.setdefault(target, call)
        for keyword in call.keywords:
            if keyword.arg in PURE_ARGUMENTS.get(verb or "", ()):
                self._pure(keyword.value, scope, f"{keyword.arg}=")
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("update", "until") and call.args and self._is_state(call.func.value, scope):
            self._pure(call.args[0], scope, f".{call.func.attr}()")

    def _is_state(self, expr: ast.expr, scope: Scope) -> bool:
        found, place = self._names.single(expr, scope)
        return isinstance(found, ast.Call) and self._names.dotted(found.func, place) == "capataz.state"

    def _pure(self, expr: ast.expr, scope: Scope, what: str) -> None:
        target = self._names.function(expr, scope)
        if target is not None:
            self.pure.setdefault(target, what)

    # ---- spreading -----------------------------------------------------------------------------

    def _spread_program(self) -> None:
        todo = [*self.programs(), *(m.top for m in self._project.modules.values())]
        while todo:
            while todo:
                scope = todo.pop()
                if scope not in self.program:
                    self.program.add(scope)
                    todo += self._used(scope)
            todo = [scope for scope in self._methods() if scope not in self.program]

    def _used(self, scope: Scope) -> Iterator[Scope]:
        """Functions that a scope calls or hands on. The top level of a module only counts for what it calls."""
        for node in scope.nodes:
            if node in self._step_functions or not isinstance(node, (ast.Name, ast.Attribute, ast.Lambda)):
                continue
            parent = self._project.parents.get(node)
            if isinstance(node, ast.Attribute):
                self._attributes.add(node.attr)
            if scope.parent is None and not (isinstance(parent, ast.Call) and parent.func is node):
                continue
            if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
                continue
            if self._in_main_guard(node):
                continue
            cls = self._names.class_of(node, scope) if not isinstance(node, ast.Lambda) else None
            if cls is not None:
                self._classes.add(cls)
            target = self._names.function(node, scope)
            called = isinstance(parent, ast.Call) and parent.func is node
            if target is not None and (called or decorated(target, self._names, "capataz.tool") is None):
                yield target  # a tool that is handed on runs in a step's place

    def _in_main_guard(self, node: ast.AST) -> bool:
        return any(is_main_guard(outer) for outer in self._project.around(node))

    def _methods(self) -> Iterator[Scope]:
        for cls in list(self._classes):
            for holder in (cls, *self._names.bases(cls)):
                body = self._project.scope_of[holder]
                for name, method in body.functions.items():
                    if name in self._attributes or name.startswith("__"):
                        yield method

    def _spread_steps(self) -> None:
        todo = list(self.steps.items())
        while todo:
            scope, origin = todo.pop()
            for node in scope.nodes:
                if isinstance(node, ast.Call):
                    target = self._names.function(node.func, scope)
                    if target is not None and target not in self.steps:
                        self.steps[target] = origin
                        todo.append((target, origin))


def step_function(call: ast.Call) -> ast.expr | None:
    """The function argument of a ``step`` call."""
    if len(call.args) > 1:
        return call.args[1]
    return next((k.value for k in call.keywords if k.arg == "fn"), None)


def is_program(scope: Scope, names: Names) -> bool:
    return program_decorator(scope, names) is not None


def program_decorator(scope: Scope, names: Names) -> ast.expr | None:
    return decorated(scope, names, "capataz.program")


def decorated(scope: Scope, names: Names, by: str) -> ast.expr | None:
    """The decorator of that name."""
    if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    for decorator in scope.node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if names.dotted(target, scope.parent or scope) == by:
            return decorator
    return None


def is_main_guard(node: ast.AST) -> bool:
    """``if __name__ == "__main__":``, which never holds in a program process."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    parts = [node.test.left, *node.test.comparators]
    return any(isinstance(p, ast.Name) and p.id == "__name__" for p in parts)
