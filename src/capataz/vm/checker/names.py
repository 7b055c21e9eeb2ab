"""What names and expressions stand for: dotted names, functions and classes of the closure, values that are known."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from capataz.vm.checker.modules import Module, Project, Scope, Value
from capataz.vm.checker.surface import Surface

_BUILTINS = frozenset(dir(builtins))
_DEPTH = 12


class Names:
    """Resolves in the project. A dotted name of Capataz is always given as it is exported (``capataz.run``)."""

    def __init__(self, project: Project, surface: Surface) -> None:
        self.project = project
        self.surface = surface
        self._known: dict[ast.AST, str | None] = {}

    # ---- dotted names --------------------------------------------------------------------------

    def dotted(self, expr: ast.AST | None, scope: Scope, depth: int = 0) -> str | None:
        """The dotted name of a Name or Attribute; None for what is only known when it runs."""
        if depth > _DEPTH or not isinstance(expr, (ast.Name, ast.Attribute)):
            return None
        if depth == 0 and expr in self._known:
            return self._known[expr]
        if isinstance(expr, ast.Name):
            found = self._name(expr.id, scope, depth)
        else:
            base = self.dotted(expr.value, scope, depth + 1)
            found = self.canonical(f"{base}.{expr.attr}") if base is not None else None
        if depth == 0:
            self._known[expr] = found
        return found

    def _name(self, name: str, scope: Scope, depth: int) -> str | None:
        for place in scope.chain():
            if place.binds(name) and not (isinstance(place.node, ast.ClassDef) and place is not scope):
                return self._bound(name, place, depth)
        for star in scope.module.stars:
            found = self.canonical(f"{star}.{name}")
            if self.surface.exports(found) or found in self._all_tops():
                return found
        return f"builtins.{name}" if name in _BUILTINS else None

    def _bound(self, name: str, place: Scope, depth: int) -> str | None:
        if name in place.imports and name not in place.values:
            return self.canonical(place.imports[name])
        if name in place.functions or name in place.classes:
            return self._inside(place, name)
        values = place.values.get(name, [])
        if name not in place.params and len(values) == 1 and values[0].how == "whole":
            alias = self.dotted(values[0].expr, place, depth + 1)
            if alias is not None:
                return alias
        return self._inside(place, name) if place.parent is None and name not in place.params else None

    @staticmethod
    def _inside(place: Scope, name: str) -> str:
        return f"{place.dotted}.{name}"

    def canonical(self, dotted: str) -> str:
        """Follows re-exports: through modules of the closure, and Capataz' own modules to its surface."""
        for _ in range(_DEPTH):
            module, rest = self._split(dotted)
            if module is None or not rest:
                break
            head, _, tail = rest.partition(".")
            target = module.top.imports.get(head)
            if target is None or target == f"{module.name}.{head}":
                break
            dotted = f"{target}.{tail}" if tail else target
        return self.surface.canonical(dotted)

    def _split(self, dotted: str) -> tuple[Module | None, str]:
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            module = self.project.modules.get(".".join(parts[:count]))
            if module is not None:
                return module, ".".join(parts[count:])
        return None, dotted

    def _all_tops(self) -> set[str]:
        return {f"{m.name}.{n}" for m in self.project.modules.values() for n in (*m.top.functions, *m.top.classes, *m.top.values)}

    # ---- what they stand for -------------------------------------------------------------------

    def function(self, expr: ast.AST | None, scope: Scope, depth: int = 0) -> Scope | None:
        """The function of the closure that an expression is: by name, a lambda, ``partial(f, ...)``, ``self.method``."""
        if isinstance(expr, ast.Lambda):
            return self.project.scope_of.get(expr)
        if isinstance(expr, ast.Call) and self.dotted(expr.func, scope) == "functools.partial" and expr.args:
            return self.function(expr.args[0], scope, depth + 1)
        if isinstance(expr, ast.Attribute) and isinstance(expr.value, ast.Name) and expr.value.id in ("self", "cls"):
            return self._method(expr.attr, scope)
        if isinstance(expr, ast.Name):
            alias = self._lambda(expr.id, scope)
            if alias is not None:
                return alias
        dotted = self.dotted(expr, scope)
        return self.function_named(dotted) if dotted is not None else None

    def _lambda(self, name: str, scope: Scope) -> Scope | None:
        for place in scope.chain():
            if place.binds(name):
                values = place.values.get(name, [])
                only = values[0].expr if len(values) == 1 and values[0].how == "whole" else None
                return self.project.scope_of.get(only) if isinstance(only, ast.Lambda) else None
        return None

    def _method(self, name: str, scope: Scope) -> Scope | None:
        owner = next((place.owner for place in scope.chain() if place.owner is not None), None)
        body = self.project.scope_of.get(owner) if owner is not None else None
        return body.functions.get(name) if body is not None else None

    def function_named(self, dotted: str) -> Scope | None:
        found = self.project.named.get(dotted)
        return found if found is not None and found.is_function else None

    def class_named(self, dotted: str | None) -> ast.ClassDef | None:
        found = self.project.named.get(dotted or "")
        return found.node if found is not None and isinstance(found.node, ast.ClassDef) else None

    def class_of(self, expr: ast.AST | None, scope: Scope) -> ast.ClassDef | None:
        return self.class_named(self.dotted(expr, scope))

    def home_of(self, cls: ast.ClassDef) -> Scope:
        """Where the names of a class' annotations are looked up."""
        return self.project.module_of[cls]

    def fields(self, cls: ast.ClassDef, depth: int = 0) -> dict[str, ast.AnnAssign]:
        """The annotated fields of a class and of its bases in the closure."""
        found: dict[str, ast.AnnAssign] = {}
        for base in self.bases(cls) if depth < _DEPTH else ():
            found |= self.fields(base, depth + 1)
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
                found[node.target.id] = node
        return found

    def bases(self, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in cls.bases:
            found = self.class_of(base.value if isinstance(base, ast.Subscript) else base, self.home_of(cls))
            if found is not None and found is not cls:
                yield found

    def base_names(self, cls: ast.ClassDef, depth: int = 0) -> set[str]:
        """Dotted names of all bases that can be seen."""
        found: set[str] = set()
        for base in cls.bases:
            dotted = self.dotted(base.value if isinstance(base, ast.Subscript) else base, self.home_of(cls))
            found.add(dotted or ast.unparse(base))
        for inner in self.bases(cls) if depth < _DEPTH else ():
            found |= self.base_names(inner, depth + 1)
        return found

    # ---- known values --------------------------------------------------------------------------

    def values(self, name: str, scope: Scope) -> tuple[list[Value], Scope | None]:
        """All that a name is given, and the scope that owns it; nothing for parameters, functions and imports."""
        for place in scope.chain():
            if place.binds(name):
                return ([] if name in place.params else place.values.get(name, [])), place
        return [], None

    def parameter(self, name: str, scope: Scope) -> tuple[ast.arg, Scope] | None:
        for place in scope.chain():
            if place.binds(name):
                return (place.params[name], place) if name in place.params else None
        return None

    def single(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> tuple[ast.expr | None, Scope]:
        """``expr`` with names that are given one value only replaced by it, through modules of the closure."""
        if depth > _DEPTH or not isinstance(expr, (ast.Name, ast.Attribute)):
            return expr, scope
        if isinstance(expr, ast.Name):
            values, place = self.values(expr.id, scope)
            if place is not None and len(values) == 1 and values[0].how == "whole":
                return self.single(values[0].expr, place, depth + 1)
        dotted = self.dotted(expr, scope)
        module, rest = self._split(dotted) if dotted is not None else (None, "")
        values = module.top.values.get(rest, []) if module is not None else []
        if module is not None and len(values) == 1 and values[0].how == "whole":
            return self.single(values[0].expr, module.top, depth + 1)
        return expr, scope

    def constant(self, expr: ast.expr | None, scope: Scope) -> object:
        """The value of a literal, or of a name for one; ``...`` when it is not known."""
        found, place = self.single(expr, scope)
        if isinstance(found, ast.BinOp) and isinstance(found.op, (ast.Add, ast.Mult, ast.Sub)):
            left, right = self.constant(found.left, place), self.constant(found.right, place)
            return _arithmetic(found.op, left, right)
        try:
            return ast.literal_eval(found) if found is not None else ...
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ...


def _arithmetic(op: ast.operator, left: object, right: object) -> object:
    if not isinstance(left, int) or not isinstance(right, int):
        return ...
    return left + right if isinstance(op, ast.Add) else left - right if isinstance(op, ast.Sub) else left * right
