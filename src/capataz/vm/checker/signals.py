"""CPZ016: a program does not swallow what stops it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope

RULES = rules(
    Rule(
        "CPZ016",
        "a signal is swallowed",
        "Parking, cancellation and a lost lease are signals that derive from `BaseException`. Catching them without raising them "
        "again keeps a program from being stopped.",
        '''from capataz import program, run

@program
async def tries() -> str:
    """Tries."""
    try:
        return (await run("worker", prompt="Work")).text
    except:  # CPZ016
        return "failed"
''',
        '''from capataz import program, run

@program
async def tries() -> str:
    """Tries."""
    try:
        return (await run("worker", prompt="Work")).text
    except Exception:
        return "failed"
''',
    )
)

_FIX = "Catch `Exception` or an error of Capataz, or end the handler with `raise`."
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def check(context: Context) -> Iterator[Finding]:
    for scope in context.project.scopes():
        if scope not in context.reach.program:
            continue
        for node in scope.nodes:
            if isinstance(node, ast.ExceptHandler):
                yield from _handler(node, scope, context)
            elif isinstance(node, (ast.Try, ast.TryStar)):
                yield from _finally(node, scope, context)
            elif isinstance(node, ast.Call) and _suppresses_all(node, scope, context):
                yield context.finding("CPZ016", node, scope, "`suppress(BaseException)` swallows what stops the program.", _FIX)


def _handler(node: ast.ExceptHandler, scope: Scope, context: Context) -> Iterator[Finding]:
    bare = node.type is None
    if (bare or _catches_all(node.type, scope, context)) and not _raises(node.body, node.name):
        said = "A bare `except`" if bare else "`except BaseException`"
        yield context.finding("CPZ016", node, scope, f"{said} swallows what stops the program: it does not raise it again.", _FIX)


def _suppresses_all(call: ast.Call, scope: Scope, context: Context) -> bool:
    named = context.dotted(call, scope) == "contextlib.suppress"
    return named and any(_catches_all(arg, scope, context) for arg in call.args)


def _catches_all(expr: ast.expr | None, scope: Scope, context: Context) -> bool:
    if isinstance(expr, ast.Tuple):
        return any(_catches_all(part, scope, context) for part in expr.elts)
    return context.names.dotted(expr, scope) == "builtins.BaseException"


def _raises(body: Sequence[ast.stmt], name: str | None) -> bool:
    """Whether what was caught is raised again, on some way through the handler."""
    for node in _walk(body):
        if isinstance(node, ast.Raise):
            again = node.exc is None or (isinstance(node.exc, ast.Name) and node.exc.id == name)
            if again:
                return True
    return False


def _walk(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _walk(list(ast.iter_child_nodes(node)))


def _finally(node: ast.Try | ast.TryStar, scope: Scope, context: Context) -> Iterator[Finding]:
    for inner in _leaving(node.finalbody):
        yield context.finding(
            "CPZ016", inner, scope, f"`{type(inner).__name__.lower()}` in `finally` swallows what stops the program.",
            "Move it behind the `try` statement.",
        )  # fmt: skip


def _leaving(body: Sequence[ast.AST], in_loop: bool = False) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not in_loop):
            yield node
        elif not isinstance(node, _FUNCTIONS):
            yield from _leaving(list(ast.iter_child_nodes(node)), in_loop or isinstance(node, _LOOPS))
