"""CPZ015: spawned work is awaited, cancelled, handed on, or a daemon."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.types import keyword

RULES = rules(
    Rule(
        "CPZ015",
        "handle neither awaited nor daemon",
        "Work is spawned and nobody waits for it: its result and its error come to nobody until the program's end.",
        '''from capataz import program, spawn

@program
async def start() -> None:
    """Starts a worker."""
    await spawn("worker", prompt="Work")  # CPZ015
''',
        '''from capataz import program, spawn

@program
async def start() -> None:
    """Starts a worker and a watcher."""
    await spawn("watcher", prompt="Watch", daemon=True)
    worker = await spawn("worker", prompt="Work")
    await worker
''',
    )
)

_STEERING = frozenset({"notify", "pause", "resume", "status", "events", "done", "name"})
_FIX = "Await the handle, or say `daemon=True`."


def check(context: Context) -> Iterator[Finding]:
    for call, scope in context.program_calls():
        if context.dotted(call, scope) != "capataz.spawn" or context.names.constant(keyword(call, "daemon"), scope) is True:
            continue
        awaited = context.project.parents.get(call)
        if isinstance(awaited, ast.Await) and not any(k.arg is None for k in call.keywords) and _dropped(awaited, scope, context):
            yield context.finding("CPZ015", call, scope, "The spawned work is neither awaited nor a daemon.", _FIX)


def _dropped(node: ast.AST, scope: Scope, context: Context) -> bool:
    """Whether nobody waits for the handle that ``node`` gives."""
    parent = context.project.parents.get(node)
    match parent:
        case ast.Expr():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) | ast.NamedExpr(target=ast.Name(id=name)):
            return scope.is_function and name not in scope.outer_names and _only_steered(name, scope, context)
        case ast.Attribute():
            return parent.attr in _STEERING
        case ast.List() | ast.Tuple() | ast.ListComp() | ast.IfExp() | ast.DictComp() | ast.Dict():
            return _dropped(parent, scope, context)
        case _:
            return False


def _only_steered(name: str, scope: Scope, context: Context) -> bool:
    """Whether a name is never read, or only to steer."""
    for place in scope.module.scopes:
        if scope not in place.chain():
            continue
        for node in place.nodes:
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                parent = context.project.parents.get(node)
                if not (isinstance(parent, ast.Attribute) and parent.attr in _STEERING):
                    return False
    return True
