"""What can be known of the types of expressions: annotations, ``output=`` of agents, constructors. No more than is needed."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from capataz.vm.checker.modules import Scope
from capataz.vm.checker.names import Names
from capataz.vm.checker.reach import is_program

HANDLE = "capataz.Handle"
STATE = "capataz.State"
RESULT = "capataz.AgentResult"
PATHS = frozenset({"pathlib.Path", "pathlib.PosixPath"})
_WRAPPERS = frozenset({"typing.Annotated", "typing.Final", "typing.Required", "typing.NotRequired", "typing_extensions.Annotated"})
_OPTIONAL = frozenset({"typing.Optional"})
_UNIONS = frozenset({"typing.Union"})
_AGENTS = frozenset({"capataz.run", "capataz.spawn"})
_DEPTH = 10

Source = Callable[[ast.Call, Scope], bool]


@dataclass(frozen=True, slots=True)
class Type:
    """``dotted``: its class (``builtins.list``); ``cls``: when the closure has it; ``limit``: most items, where a field says so."""

    dotted: str | None = None
    cls: ast.ClassDef | None = None
    args: tuple[Type, ...] = ()
    limit: int | None = None


UNKNOWN = Type()


class Types:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._returning: set[Scope] = set()

    # ---- annotations ---------------------------------------------------------------------------

    def annotated(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> Type:
        """The type that an annotation names; a union with None is its other member."""
        expr = unquoted(expr)
        if expr is None or depth > _DEPTH:
            return UNKNOWN
        if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.BitOr):
            return self._union([expr.left, expr.right], scope, depth)
        if isinstance(expr, ast.Subscript):
            return self._subscript(expr, scope, depth)
        dotted = self._names.dotted(expr, scope)
        cls = self._names.class_named(dotted)
        if dotted is not None and cls is None and self._alias(expr, scope) is not expr:
            found, place = self._names.single(expr, scope)
            return self.annotated(found, place, depth + 1)
        return Type(dotted, cls)

    def _alias(self, expr: ast.expr, scope: Scope) -> ast.expr | None:
        found, _ = self._names.single(expr, scope)
        return found

    def _subscript(self, expr: ast.Subscript, scope: Scope, depth: int) -> Type:
        base = self._names.dotted(expr.value, scope)
        parts = expr.slice.elts if isinstance(expr.slice, ast.Tuple) else [expr.slice]
        if base in _WRAPPERS:
            return self.annotated(parts[0], scope, depth + 1)
        if base in _OPTIONAL or base in _UNIONS:
            return self._union(list(parts), scope, depth)
        return Type(base, self._names.class_named(base), tuple(self.annotated(p, scope, depth + 1) for p in parts))

    def _union(self, members: list[ast.expr], scope: Scope, depth: int) -> Type:
        kept = [m for m in members if not (isinstance(m, ast.Constant) and m.value is None)]
        return self.annotated(kept[0], scope, depth + 1) if len(kept) == 1 else UNKNOWN

    # ---- expressions ---------------------------------------------------------------------------

    def of(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> Type:
        """The type of an expression, ``UNKNOWN`` when it cannot be told."""
        if depth > _DEPTH:
            return UNKNOWN
        match expr:
            case ast.Await(value=ast.Call() as call):
                return self._awaited(call, scope, depth)
            case ast.Await(value=value):
                inner = self.of(value, scope, depth + 1)
                return inner.args[0] if inner.dotted == HANDLE and inner.args else UNKNOWN
            case ast.Call():
                return self._called(expr, scope, depth)
            case ast.Name():
                return self._named(expr.id, scope, depth)
            case ast.Attribute():
                return self._attribute(expr, scope, depth)
            case ast.Subscript(slice=index) if not isinstance(index, ast.Slice):
                return item(self.of(expr.value, scope, depth + 1))
            case ast.BinOp(op=ast.Div()):
                left = self.of(expr.left, scope, depth + 1)
                return left if left.dotted in PATHS else UNKNOWN
            case ast.Constant() if expr.value is not None:
                return Type(f"builtins.{type(expr.value).__name__}")
            case ast.JoinedStr():
                return Type("builtins.str")
            case ast.List(elts=elts) | ast.Tuple(elts=elts) | ast.Set(elts=elts):
                kind = {ast.List: "list", ast.Tuple: "tuple", ast.Set: "set"}[type(expr)]
                return Type(f"builtins.{kind}", None, (self.of(elts[0], scope, depth + 1),) if elts else ())
            case ast.ListComp(elt=elt):
                return Type("builtins.list", None, (self.of(elt, scope, depth + 1),))
            case ast.Dict() | ast.DictComp():
                return Type("builtins.dict")
            case _:
                return UNKNOWN

    def _awaited(self, call: ast.Call, scope: Scope, depth: int) -> Type:
        verb = self._names.dotted(call.func, scope)
        if verb in _AGENTS:
            result = self._result(call, scope, depth)
            return Type(HANDLE, None, (result,)) if verb == "capataz.spawn" else result
        if isinstance(call.func, ast.Attribute) and call.func.attr == "result":
            inner = self.of(call.func.value, scope, depth + 1)
            return inner.args[0] if inner.dotted == HANDLE and inner.args else UNKNOWN
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get":
            inner = self.of(call.func.value, scope, depth + 1)
            return inner.args[0] if inner.dotted == STATE and inner.args else UNKNOWN
        if verb == "capataz.fan_out" and len(call.args) > 1:
            return Type("builtins.list", None, (self.returned(self._names.function(call.args[1], scope), depth),))
        return self.returned(self._names.function(call.func, scope), depth)

    def _result(self, call: ast.Call, scope: Scope, depth: int) -> Type:
        target = self._names.function(call.args[0], scope) if call.args else None
        if target is not None and is_program(target, self._names):
            return self.returned(target, depth)
        output = keyword(call, "output")
        return Type(RESULT) if output is None else self.annotated(output, scope, depth + 1)

    def returned(self, function: Scope | None, depth: int = 0) -> Type:
        """What a function of the closure says that it returns."""
        if function is None or not isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return UNKNOWN
        return self.annotated(function.node.returns, function.parent or function, depth + 1)

    def _called(self, call: ast.Call, scope: Scope, depth: int) -> Type:
        dotted = self._names.dotted(call.func, scope)
        if dotted == "capataz.state" and len(call.args) > 1:
            return Type(STATE, None, (self.annotated(call.args[1], scope, depth + 1),))
        if dotted in ("builtins.list", "builtins.tuple", "builtins.sorted", "builtins.set", "builtins.reversed") and call.args:
            return Type("builtins.list", None, self.of(call.args[0], scope, depth + 1).args)
        cls = self._names.class_named(dotted)
        if cls is not None or (dotted is not None and dotted.rpartition(".")[2][:1].isupper()):
            return Type(dotted, cls)
        function = self._names.function(call.func, scope)
        return self.returned(function, depth) if function is not None and not function.is_async else UNKNOWN

    def _named(self, name: str, scope: Scope, depth: int) -> Type:
        parameter = self._names.parameter(name, scope)
        if parameter is not None:
            return self.annotated(parameter[0].annotation, parameter[1].parent or parameter[1], depth + 1)
        values, place = self._names.values(name, scope)
        for value in values:
            found = UNKNOWN
            if place is not None and value.annotation is not None:
                found = self.annotated(value.annotation, place, depth + 1)
            elif place is not None and value.how == "whole":
                found = self.of(value.expr, place, depth + 1)
            elif place is not None and value.how == "item":
                found = item(self.of(value.expr, place, depth + 1))
            if found is not UNKNOWN:
                return found
        single, where = self._names.single(ast.Name(name, ast.Load()), scope) if place is not None and not values else (None, scope)
        return self.of(single, where, depth + 1) if single is not None and not isinstance(single, ast.Name) else UNKNOWN

    def _attribute(self, expr: ast.Attribute, scope: Scope, depth: int) -> Type:
        owner = self.of(expr.value, scope, depth + 1)
        if owner.cls is not None:
            node = self._names.fields(owner.cls).get(expr.attr)
            if node is not None:
                found = self.annotated(node.annotation, self._names.home_of(owner.cls), depth + 1)
                return Type(found.dotted, found.cls, found.args, self._limit(node, scope))
        single, where = self._names.single(expr, scope)
        return self.of(single, where, depth + 1) if single is not None and single is not expr else UNKNOWN

    def _limit(self, node: ast.AnnAssign, scope: Scope) -> int | None:
        """``max_length`` of ``Field`` as the default, or inside ``Annotated``."""
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                for given in call.keywords:
                    value = self._names.constant(given.value, scope) if given.arg == "max_length" else ...
                    if isinstance(value, int):
                        return value
        return None

    # ---- where values come from ----------------------------------------------------------------

    def derives(self, expr: ast.expr | None, scope: Scope, source: Source, depth: int = 0) -> bool:
        """Whether a value is made from what a ``source`` call gives, through names, functions of the closure and loops."""
        if expr is None or depth > _DEPTH:
            return False
        for node in ast.walk(expr):
            if isinstance(node, ast.Call):
                if source(node, scope):
                    return True
                function = self._names.function(node.func, scope)
                if function is not None and self._returns(function, source, depth):
                    return True
                passed = self._names.function(node.args[1], scope) if len(node.args) > 1 else None
                if passed is not None and self._names.dotted(node.func, scope) == "capataz.fan_out" and self._returns(passed, source, depth):
                    return True
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                values, place = self._names.values(node.id, scope)
                if place is not None and any(self.derives(v.expr, place, source, depth + 1) for v in values):
                    return True
        return False

    def _returns(self, function: Scope, source: Source, depth: int) -> bool:
        if function in self._returning:
            return False
        self._returning.add(function)
        try:
            results = [n.value for n in function.nodes if isinstance(n, ast.Return)]
            if isinstance(function.node, ast.Lambda):
                results = [function.node.body]
            return any(self.derives(value, function, source, depth + 1) for value in results)
        finally:
            self._returning.discard(function)


def item(of: Type) -> Type:
    """The type of a container's items."""
    if of.dotted in ("builtins.dict", "typing.Dict", "collections.abc.Mapping"):
        return of.args[1] if len(of.args) > 1 else UNKNOWN
    return of.args[0] if of.args and of.dotted not in (HANDLE, STATE) else UNKNOWN


def unquoted(expr: ast.expr | None) -> ast.expr | None:
    """An annotation written as text."""
    if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
        try:
            return ast.parse(expr.value, mode="eval").body
        except (SyntaxError, ValueError):
            return None
    return expr


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """A keyword argument; None when it is absent or literally None."""
    found = next((k.value for k in call.keywords if k.arg == name), None)
    return None if isinstance(found, ast.Constant) and found.value is None else found
