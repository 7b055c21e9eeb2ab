"""CPZ001: what must be awaited is awaited."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import shown
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope

RULES = rules(
    Rule(
        "CPZ001",
        "effect not awaited",
        "An effect, or an async function of the program, is called and nobody awaits what it gives: nothing happens, or a "
        "coroutine is used as if it were the result.",
        '''from capataz import checkpoint, program

@program
async def nightly() -> None:
    """Tells that it began."""
    checkpoint("began")  # CPZ001
''',
        '''from capataz import checkpoint, program

@program
async def nightly() -> None:
    """Tells that it began."""
    await checkpoint("began")
''',
    )
)

_ASYNCIO = frozenset(f"asyncio.{n}" for n in ("sleep", "wait_for", "wait", "gather", "shield"))
_NO_CONSUMERS = frozenset(
    f"builtins.{n}" for n in ("print", "str", "repr", "len", "int", "float", "bool", "sum", "max", "min", "sorted", "list", "tuple",
                              "set", "dict", "isinstance", "type", "enumerate", "any", "all", "format")
) | {"json.dumps"}  # fmt: skip
_OF_COROUTINES = frozenset({"close", "send", "throw"})
_PASS = (ast.IfExp, ast.BoolOp, ast.Starred, ast.NamedExpr)
_USES = (ast.FormattedValue, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Assert, ast.If, ast.While, ast.withitem)
_HOLDS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def check(context: Context) -> Iterator[Finding]:
    for call, scope in context.calls():
        if scope not in context.reach.program and scope not in context.reach.steps:
            continue
        what = _awaitable(call, scope, context)
        if what is not None and _lost(call, scope, context):
            yield context.finding(
                "CPZ001", call, scope, f"{what} is not awaited, so it does not happen and its result is not there.",
                f"Write `await {shown(call)}`.",
            )  # fmt: skip


def _awaitable(call: ast.Call, scope: Scope, context: Context) -> str | None:
    """How a call that gives an awaitable is named; None for other calls."""
    dotted = context.dotted(call, scope)
    if context.surface.is_effect(dotted):
        return f"{(dotted or '').removeprefix('capataz.')}()"
    if dotted in _ASYNCIO:
        return f"{dotted}()" if isinstance(context.project.parents.get(call), ast.Expr) else None
    function = context.names.function(call.func, scope)
    if function is not None:
        return f"{function.title}()" if function.is_async and not _generates(function) else None
    if isinstance(call.func, ast.Attribute):
        owner = context.types.of(call.func.value, scope).dotted or ""
        return f".{call.func.attr}()" if context.surface.methods(owner).get(call.func.attr) else None
    return None


def _generates(function: Scope) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in function.nodes)


def _lost(node: ast.AST, scope: Scope, context: Context) -> bool:
    """Whether nobody can await the value of ``node``."""
    parent = context.project.parents.get(node)
    match parent:
        case ast.Expr():
            return True
        case ast.Attribute():
            return parent.attr not in _OF_COROUTINES
        case ast.Subscript():
            return parent.value is node
        case ast.Return():
            return scope.is_async
        case ast.For():
            return parent.iter is node
        case ast.Call():
            return parent.func is node or context.dotted(parent, scope) in _NO_CONSUMERS
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return _unused(name, scope, context)
        case ast.NamedExpr(target=ast.Name(id=name)) if isinstance(context.project.parents.get(parent), ast.Expr):
            return _unused(name, scope, context)
        case ast.keyword():
            return False
        case _ if isinstance(parent, _HOLDS):
            return isinstance(context.project.parents.get(parent), ast.Expr)
        case _ if isinstance(parent, _PASS):
            return not (isinstance(parent, ast.IfExp) and parent.test is node) and _lost(parent, scope, context)
        case _:
            return isinstance(parent, _USES)


def _unused(name: str, scope: Scope, context: Context) -> bool:
    """Whether a name that holds an awaitable is never read, or only as if it were the result."""
    if not scope.is_function or name in scope.outer_names:
        return False
    loads = list(_loads(name, scope, context))
    return all(_as_result(node, place, context) for node, place in loads)


def _loads(name: str, scope: Scope, context: Context) -> Iterator[tuple[ast.Name, Scope]]:
    for place in scope.module.scopes:
        if scope in place.chain():
            for node in place.nodes:
                if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                    yield node, place


def _as_result(node: ast.Name, scope: Scope, context: Context) -> bool:
    parent = context.project.parents.get(node)
    if isinstance(parent, (ast.Return, ast.Assign, ast.AnnAssign)):
        return isinstance(parent, ast.Return) and scope.is_async
    return _lost(node, scope, context)
