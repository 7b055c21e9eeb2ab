"""How many items an iteration has at most, and what a budget says, as far as the source tells."""

from __future__ import annotations

import ast
from decimal import Decimal

from capataz.contracts.errors import UsageError
from capataz.contracts.units import usd
from capataz.vm.checker.amounts import Amount, Limits
from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Place
from capataz.vm.checker.modules import COMPREHENSIONS, Scope

_SAME = frozenset(f"builtins.{n}" for n in ("list", "tuple", "sorted", "set", "frozenset", "reversed", "enumerate", "iter", "dict"))
_SECOND = frozenset({"builtins.map", "builtins.filter"})
_VIEWS = frozenset({"items", "keys", "values", "copy"})
_GROWS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft", "extendleft"})
ENDLESS = frozenset({"itertools.count", "itertools.cycle", "itertools.repeat"})
_ENUMS = frozenset({"enum.Enum", "enum.StrEnum", "enum.IntEnum"})
_DEPTH = 10


class Counts:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = context.names

    def items(self, expr: ast.expr, scope: Scope) -> Amount:
        """The most items of an iterable; without a limit it says why."""
        count = self._items(expr, scope, 0)
        if count is not None:
            return Amount(count)
        place = Place(scope.module.shown, expr.lineno, expr.col_offset + 1)
        return Amount(None, place, f"repeats for each item of `{shown(expr)}`, and nothing limits how many there are")

    def _items(self, expr: ast.expr, scope: Scope, depth: int) -> int | None:
        if depth > _DEPTH:
            return None
        if isinstance(expr, (ast.Name, ast.Attribute)):
            return self._named(expr, scope, depth)
        if isinstance(expr, (ast.List, ast.Tuple, ast.Set)):
            return self._sum(expr.elts, scope, depth)
        if isinstance(expr, ast.Dict):
            return len(expr.keys) if all(k is not None for k in expr.keys) else None
        if isinstance(expr, ast.Constant) and isinstance(expr.value, (str, bytes)):
            return len(expr.value)
        if isinstance(expr, ast.Await):
            return self._items(expr.value, scope, depth + 1)
        if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Slice):
            return self._slice(expr, expr.slice, scope, depth)
        if isinstance(expr, COMPREHENSIONS):
            return self._product(expr.generators, scope, depth)
        if isinstance(expr, ast.IfExp):
            return _largest(self._items(expr.body, scope, depth + 1), self._items(expr.orelse, scope, depth + 1))
        if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Add):
            return self._sum([ast.Starred(expr.left), ast.Starred(expr.right)], scope, depth)
        return self._call(expr, scope, depth) if isinstance(expr, ast.Call) else None

    def _named(self, expr: ast.Name | ast.Attribute, scope: Scope, depth: int) -> int | None:
        limit = self._context.types.of(expr, scope).limit
        if limit is not None:
            return limit
        cls = self._names.class_of(expr, scope)
        if cls is not None and self._names.base_names(cls) & _ENUMS:
            return sum(isinstance(node, (ast.Assign, ast.AnnAssign)) for node in cls.body)
        found, place = self._names.single(expr, scope)
        if found is None or found is expr or (isinstance(expr, ast.Name) and self._grows(expr.id, place)):
            return None
        return self._items(found, place, depth + 1)

    def _grows(self, name: str, place: Scope) -> bool:
        """Whether somebody adds to the list of that name."""
        return any(
            isinstance(node, ast.Attribute) and node.attr in _GROWS and isinstance(node.value, ast.Name) and node.value.id == name
            for scope in place.module.scopes for node in scope.nodes
        )  # fmt: skip

    def _sum(self, parts: list[ast.expr], scope: Scope, depth: int) -> int | None:
        total = 0
        for part in parts:
            count = self._items(part.value, scope, depth + 1) if isinstance(part, ast.Starred) else 1
            if count is None:
                return None
            total += count
        return total

    def _slice(self, expr: ast.Subscript, index: ast.Slice, scope: Scope, depth: int) -> int | None:
        upper = self.upper(index.upper, scope)
        lower = self._names.constant(index.lower, scope) if index.lower is not None else 0
        whole = self._items(expr.value, scope, depth + 1)
        if upper is None or upper < 0 or not isinstance(lower, int) or lower < 0:
            return whole
        return max(0, upper - lower) if whole is None else min(whole, max(0, upper - lower))

    def _product(self, generators: list[ast.comprehension], scope: Scope, depth: int) -> int | None:
        total = 1
        for generator in generators:
            count = self._items(generator.iter, scope, depth + 1)
            if count is None:
                return None
            total *= count
        return total

    def _call(self, call: ast.Call, scope: Scope, depth: int) -> int | None:
        dotted = self._names.dotted(call.func, scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _VIEWS and dotted is None:
            return self._items(call.func.value, scope, depth + 1)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _VIEWS and not call.args:
            return self._items(call.func.value, scope, depth + 1)
        if not call.args:
            return 0 if dotted in _SAME and not call.keywords else None
        if dotted == "builtins.range":
            return self._range(call, scope)
        if dotted in _SAME:
            return self._items(call.args[0], scope, depth + 1)
        if dotted in _SECOND and len(call.args) > 1:
            return self._items(call.args[1], scope, depth + 1)
        if dotted == "builtins.zip":
            return _smallest([self._items(arg, scope, depth + 1) for arg in call.args])
        if dotted == "itertools.islice" and len(call.args) == 2:
            return self.upper(call.args[1], scope)
        if dotted == "itertools.repeat" and len(call.args) == 2:
            return self.upper(call.args[1], scope)
        return self._items(call.args[0], scope, depth + 1) if dotted == "capataz.fan_out" else None

    def _range(self, call: ast.Call, scope: Scope) -> int | None:
        if len(call.args) == 1:
            upper = self.upper(call.args[0], scope)
            return None if upper is None else max(0, upper)
        parts = [self._names.constant(arg, scope) for arg in call.args]
        if not all(isinstance(p, int) for p in parts) or (len(parts) == 3 and parts[2] == 0):
            upper, lower = self.upper(call.args[1], scope), parts[0]
            return max(0, upper - lower) if upper is not None and isinstance(lower, int) and len(parts) == 2 else None
        return len(range(*parts))  # type: ignore[arg-type]

    def upper(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> int | None:
        """The largest value that a whole number can have."""
        if depth > _DEPTH or expr is None:
            return None
        value = self._names.constant(expr, scope)
        if isinstance(value, int):
            return int(value)
        found, place = self._names.single(expr, scope)
        if isinstance(found, ast.IfExp):
            return _largest(self.upper(found.body, place, depth + 1), self.upper(found.orelse, place, depth + 1))
        if isinstance(found, ast.Call) and not found.keywords and found.args:
            dotted = self._names.dotted(found.func, place)
            if dotted == "builtins.min":
                return _smallest([self.upper(arg, place, depth + 1) for arg in found.args])
            if dotted == "builtins.max":
                parts = [self.upper(arg, place, depth + 1) for arg in found.args]
                return None if None in parts else max(p for p in parts if p is not None)
            if dotted == "builtins.len":
                return self._items(found.args[0], place, depth + 1)
        return None

    # ---- budgets -------------------------------------------------------------------------------

    def limits(self, expr: ast.expr | None, scope: Scope) -> Limits:
        """What ``budget=`` says."""
        found, place = self._names.single(expr, scope)
        if found is None or (isinstance(found, ast.Constant) and found.value is None):
            return Limits()
        if not isinstance(found, ast.Call) or self._names.dotted(found.func, place) != "capataz.budget":
            return Limits(any=True)
        given = {k.arg: self._names.constant(k.value, place) for k in found.keywords}
        return Limits(_number(given.get("agents")), _number(given.get("turns")), _money(given.get("usd")), any=bool(given))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def _money(value: object) -> float | None:
    if not isinstance(value, (int, float, str, Decimal)) or isinstance(value, bool):
        return None
    try:
        return float(usd(value))
    except UsageError:
        return None


def _largest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _smallest(parts: list[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return min(known) if known else None


def shown(node: ast.AST, most: int = 48) -> str:
    """Source text of an expression on one line, for a sentence."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
