"""The bound: the most agents, turns and money that a program can use, counted over everything that it may call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from capataz.vm.checker.amounts import Amount, Bound, Limits, Use
from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import Counts, shown
from capataz.vm.checker.finding import Place
from capataz.vm.checker.modules import COMPREHENSIONS, Scope
from capataz.vm.checker.reach import is_main_guard, is_program, program_decorator, step_function
from capataz.vm.checker.types import keyword

DEFAULT_TURNS = 40
"""Model turns of an agent that says none: the command line's ``--max-turns``."""

_STARTERS = frozenset({"capataz.run", "capataz.spawn", "capataz.fan_out", "capataz.loop", "builtins.map"})

Given = Mapping[tuple[Scope, str], tuple[Scope, ...]]
"""Functions that parameters stand for."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A place where agents are started as often as something says that nobody limits, and no budget covers it.

    ``kind``: ``fan_out``, ``for`` or ``while``."""

    kind: str
    node: ast.expr | ast.stmt
    scope: Scope


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the count stands: a function, what its parameters are, whether a budget covers it, who called whom."""

    scope: Scope
    given: Given = field(default_factory=dict[tuple[Scope, str], tuple[Scope, ...]])
    covered: bool = False
    stack: tuple[Scope, ...] = ()


class Counter:
    """Counts a program. ``repeats`` collects what no budget covers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = context.names
        self._counts = Counts(context)
        self._known: dict[object, Use] = {}
        self._live: dict[Scope, frozenset[ast.AST]] = {}
        self.repeats: dict[tuple[str, int, int], Repeat] = {}

    def bound(self, program: Scope) -> Bound:
        return Bound(program.title, self._program(program, _Frame(program), ()))

    # ---- functions -----------------------------------------------------------------------------

    def _program(self, program: Scope, frame: _Frame, stack: tuple[Scope, ...]) -> Use:
        """A program with the budget of its decorator."""
        decorator = program_decorator(program, self._names)
        limits = self._budget(decorator, program) if isinstance(decorator, ast.Call) else Limits()
        return self._function(program, {}, frame.covered or limits.any, stack).capped(limits)

    def _function(self, scope: Scope, given: Given, covered: bool, stack: tuple[Scope, ...]) -> Use:
        if scope in stack:
            endless = Amount(None, self._place(scope.node, scope), f"({scope.title}) calls itself")
            return Use(endless, endless, endless)
        key = (scope, covered, tuple(sorted(((s.dotted, n, tuple(f.dotted for f in fs)) for (s, n), fs in given.items()))))
        if key not in self._known:
            frame = _Frame(scope, given, covered, (*stack, scope))
            node = scope.node
            self._known[key] = self._expr(node.body, frame) if isinstance(node, ast.Lambda) else self._block(node.body, frame)
        return self._known[key]

    # ---- statements ----------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], frame: _Frame) -> Use:
        total, live = Use(), self._counts_in(frame.scope)
        for node in body:
            if node in live:
                total += self._statement(node, frame)
        return total

    def _statement(self, node: ast.stmt, frame: _Frame) -> Use:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return Use()
            case ast.If():
                if is_main_guard(node):
                    return Use()
                return self._expr(node.test, frame) + self._block(node.body, frame).most(self._block(node.orelse, frame))
            case ast.For() | ast.AsyncFor():
                return self._for(node, frame)
            case ast.While():
                return self._while(node, frame)
            case ast.Try() | ast.TryStar():
                handlers = _most(self._block(handler.body, frame) for handler in node.handlers)
                rest = self._block(node.orelse, frame) + self._block(node.finalbody, frame)
                return self._block(node.body, frame) + handlers + rest
            case ast.With() | ast.AsyncWith():
                return self._with(node, frame)
            case ast.Match():
                return self._expr(node.subject, frame) + _most(self._block(case.body, frame) for case in node.cases)
            case _:
                return self._children(node, frame)

    def _for(self, node: ast.For | ast.AsyncFor, frame: _Frame) -> Use:
        head, body = self._expr(node.iter, frame), self._block(node.body, frame)
        if body.nothing:
            return head + self._block(node.orelse, frame)
        count = self._counts.items(node.iter, frame.scope)
        if count.value is None and not frame.covered:
            self._note(Repeat("for", node.iter, frame.scope))
        return head + body.times(count) + self._block(node.orelse, frame)

    def _while(self, node: ast.While, frame: _Frame) -> Use:
        if self._names.constant(node.test, frame.scope) in (False, 0, None):
            return self._block(node.orelse, frame)
        body = self._expr(node.test, frame) + self._block(node.body, frame)
        if body.nothing:
            return self._block(node.orelse, frame)
        if not frame.covered:
            self._note(Repeat("while", node, frame.scope))
        rounds = Amount(None, self._place(node, frame.scope), f"is a loop `while {shown(node.test)}` whose rounds nothing limits")
        return body.times(rounds) + self._block(node.orelse, frame)

    def _with(self, node: ast.With | ast.AsyncWith, frame: _Frame) -> Use:
        total, limits = Use(), list[Limits]()
        for entered in node.items:
            call = entered.context_expr
            total += self._expr(call, frame)
            if isinstance(call, ast.Call) and self._context.dotted(call, frame.scope) == "capataz.scope":
                limits.append(self._budget(call, frame.scope))
        covered = frame.covered or any(limit.any for limit in limits)
        body = self._block(node.body, _Frame(frame.scope, frame.given, covered, frame.stack))
        for limit in limits:
            body = body.capped(limit)
        return total + body

    # ---- expressions ---------------------------------------------------------------------------

    def _counts_in(self, scope: Scope) -> frozenset[ast.AST]:
        """The nodes of a function that hold a call which may start an agent; all others are passed over."""
        if scope not in self._live:
            found: set[ast.AST] = set()
            for node in scope.nodes:
                if isinstance(node, ast.Call) and self._may_start(node, scope):
                    found.add(node)
                    for outer in self._context.project.around(node):
                        if outer in found:
                            break
                        found.add(outer)
            self._live[scope] = frozenset(found)
        return self._live[scope]

    def _may_start(self, call: ast.Call, scope: Scope) -> bool:
        dotted = self._context.dotted(call, scope)
        if dotted in _STARTERS or self._names.function(call.func, scope) is not None:
            return True
        if isinstance(call.func, ast.Name):
            return self._names.parameter(call.func.id, scope) is not None
        return dotted is None and isinstance(call.func, ast.Attribute) and self._context.types.of(call.func.value, scope).cls is not None

    def _children(self, node: ast.AST, frame: _Frame) -> Use:
        total, live = Use(), self._counts_in(frame.scope)
        for child in ast.iter_child_nodes(node):
            if child not in live:
                continue
            if isinstance(child, ast.expr):
                total += self._expr(child, frame)
            elif isinstance(child, (ast.keyword, ast.comprehension)):
                total += self._children(child, frame)
        return total

    def _expr(self, node: ast.expr, frame: _Frame) -> Use:
        if node not in self._counts_in(frame.scope):
            return Use()
        if isinstance(node, ast.Call):
            return self._call(node, frame)
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node, frame)
        if isinstance(node, ast.IfExp):
            return self._expr(node.test, frame) + self._expr(node.body, frame).most(self._expr(node.orelse, frame))
        return self._children(node, frame)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, frame: _Frame) -> Use:
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        body = Use()
        for part in (*parts, *(test for g in node.generators for test in g.ifs)):
            body += self._expr(part, frame)
        total = Use()
        for generator in node.generators:
            total += self._expr(generator.iter, frame)
            if not body.nothing:
                count = self._counts.items(generator.iter, frame.scope)
                if count.value is None and not frame.covered:
                    self._note(Repeat("for", generator.iter, frame.scope))
                body = body.times(count)
        return total + body

    def _call(self, call: ast.Call, frame: _Frame) -> Use:
        dotted = self._context.dotted(call, frame.scope)
        if dotted in ("capataz.run", "capataz.spawn"):
            return self._arguments(call, frame) + self._run(call, frame)
        if dotted == "capataz.fan_out":
            return self._arguments(call, frame) + self._fan_out(call, frame)
        if dotted == "builtins.map":
            return self._arguments(call, frame) + self._fan_out(call, frame, items=1, fn=0)
        if dotted == "capataz.loop":
            return self._arguments(call, frame) + self._loop(call, frame)
        if dotted == "capataz.step":
            skipped = step_function(call)
            return self._sum([a for a in call.args if a is not skipped], frame)
        return self._expr_of(call.func, frame) + self._arguments(call, frame) + self._callee(call, frame)

    def _expr_of(self, func: ast.expr, frame: _Frame) -> Use:
        return self._expr(func.value, frame) if isinstance(func, ast.Attribute) else Use()

    def _arguments(self, call: ast.Call, frame: _Frame) -> Use:
        return self._sum([*call.args, *(k.value for k in call.keywords)], frame)

    def _sum(self, parts: Iterable[ast.expr], frame: _Frame) -> Use:
        total = Use()
        for part in parts:
            total += self._expr(part, frame)
        return total

    # ---- calls ---------------------------------------------------------------------------------

    def _callee(self, call: ast.Call, frame: _Frame) -> Use:
        targets = self._functions(call.func, frame)
        if targets:
            return _most(self._function(t, self._bind(call, t, frame), frame.covered, frame.stack) for t in targets)
        awaited = isinstance(self._context.project.parents.get(call), ast.Await)
        if awaited and isinstance(call.func, ast.Name) and self._names.parameter(call.func.id, frame.scope) is not None:
            endless = Amount(None, self._place(call, frame.scope), f"calls `{call.func.id}`, which is not known here")
            return Use(endless, endless, endless)
        return Use()

    def _functions(self, expr: ast.expr | None, frame: _Frame) -> tuple[Scope, ...]:
        """The functions that an expression may be: of the closure, a parameter's, a method of a class of the closure."""
        function = self._names.function(expr, frame.scope)
        if function is not None:
            return (function,)
        if isinstance(expr, ast.Name):
            parameter = self._names.parameter(expr.id, frame.scope)
            return frame.given.get((parameter[1], expr.id), ()) if parameter is not None else ()
        if isinstance(expr, ast.Attribute):
            cls = self._context.types.of(expr.value, frame.scope).cls
            method = self._context.project.scope_of[cls].functions.get(expr.attr) if cls is not None else None
            return (method,) if method is not None else ()
        return ()

    def _bind(self, call: ast.Call, target: Scope, frame: _Frame) -> Given:
        """Functions among the arguments, by the parameter that gets each."""
        names = list(target.params)
        if target.owner is not None and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg in names)]
        found = {(target, n): fs for n, value in pairs if n is not None and (fs := self._functions(value, frame))}
        return {**frame.given, **found}

    def _run(self, call: ast.Call, frame: _Frame) -> Use:
        limits = self._budget(call, frame.scope)
        child = self._context.child(call, frame.scope)
        if child is not None and is_program(child, self._names):
            inner = _Frame(frame.scope, {}, frame.covered or limits.any, frame.stack)
            return self._program(child, inner, frame.stack).capped(limits)
        if keyword(call, "prompt") is None and call.args and not isinstance(call.args[0], ast.Constant):
            endless = Amount(None, self._place(call, frame.scope), f"runs `{shown(call.args[0])}`, whose source is not part of this program")
            return Use(endless, endless, endless).capped(limits)
        turns = self._turns(call, frame.scope)
        return Use(Amount(1), turns, self._money(call, turns, frame.scope)).capped(limits)

    def _turns(self, call: ast.Call, scope: Scope) -> Amount:
        given = keyword(call, "max_turns")
        if given is None:
            return Amount(DEFAULT_TURNS)
        upper = self._counts.upper(given, scope)
        return Amount(upper) if upper is not None else Amount(None, self._place(given, scope), f"takes its max_turns from `{shown(given)}`")

    def _money(self, call: ast.Call, turns: Amount, scope: Scope) -> Amount:
        models, model = self._context.models, self._names.constant(keyword(call, "model"), scope)
        worst = models.worst_call_usd(model) if models is not None and isinstance(model, str) else None
        if worst is None:
            return Amount(None, self._place(call, scope), "starts an agent that no money budget covers")
        return turns.times(Amount(worst))

    def _fan_out(self, call: ast.Call, frame: _Frame, *, items: int = 0, fn: int = 1) -> Use:
        named = {k.arg: k.value for k in call.keywords}
        many = call.args[items] if len(call.args) > items else named.get("items")
        function = call.args[fn] if len(call.args) > fn else named.get("fn")
        if many is None:
            return Use()
        targets = self._functions(function, frame)
        each = _most(self._any(target, frame) for target in targets)
        if each.nothing:
            return Use()
        count = self._counts.items(many, frame.scope)
        if count.value is None and not frame.covered:
            self._note(Repeat("fan_out", call, frame.scope))
        return each.times(count)

    def _any(self, target: Scope, frame: _Frame) -> Use:
        return self._function(target, frame.given, frame.covered, frame.stack)

    def _loop(self, call: ast.Call, frame: _Frame) -> Use:
        each = _most(self._any(target, frame) for target in self._functions(call.args[0] if call.args else None, frame))
        return each.times(Amount(None, self._place(call, frame.scope), "is an endless loop"))

    # ---- places --------------------------------------------------------------------------------

    def _budget(self, call: ast.Call, scope: Scope) -> Limits:
        return self._counts.limits(keyword(call, "budget"), scope)

    @staticmethod
    def _place(node: ast.AST, scope: Scope) -> Place:
        return Place(scope.module.shown, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)

    def _note(self, repeat: Repeat) -> None:
        key = (repeat.scope.module.shown, repeat.node.lineno, repeat.node.col_offset)
        self.repeats.setdefault(key, repeat)


def _most(uses: Iterable[Use]) -> Use:
    found = Use()
    for use in uses:
        found = found.most(use)
    return found
