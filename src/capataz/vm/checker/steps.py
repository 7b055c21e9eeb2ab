"""CPZ012 to CPZ014: what steps and pure callbacks may be and do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import shown
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.reach import step_function

RULES = rules(
    Rule(
        "CPZ012",
        "verb inside a step",
        "A step's function runs once in a process of its own, where no verb works: neither `step` nor `run` nor any other.",
        '''from capataz import program, step

def leaf(n: int) -> int:
    return n + 1

async def outer(n: int) -> int:
    return await step("leaf", leaf, n)  # CPZ012

@program
async def nested() -> int:
    """Nests steps."""
    return await step("outer", outer, 1)
''',
        '''from capataz import program, step

def leaf(n: int) -> int:
    return n + 1

async def outer(n: int) -> int:
    return await step("leaf", leaf, n)

@program
async def nested() -> int:
    """Calls a function that has a step."""
    return await outer(1)
''',
    ),
    Rule(
        "CPZ013",
        "verb inside a pure function",
        "`accept=`, `context=`, `key=` and a state's `update` take functions that must be pure: they are not recorded and may be "
        "called again.",
        '''from capataz import program, run

async def good(text: str) -> bool:
    return (await run("judge", prompt=text)).text == "yes"  # CPZ013

@program
async def write() -> str:
    """Writes."""
    return (await run("writer", prompt="Write", accept=good)).text
''',
        '''from capataz import program, run

def good(text: str) -> bool:
    return text.endswith(".")

@program
async def write() -> str:
    """Writes."""
    return (await run("writer", prompt="Write", accept=good)).text
''',
    ),
    Rule(
        "CPZ014",
        "step's function that the journal cannot name",
        "A step is known by its function and its arguments. A function that uses variables from around it, a `partial` or a bound "
        "method hides what it works on.",
        '''from capataz import program, step

@program
async def double(input: int) -> int:
    """Doubles."""
    return await step("double", lambda: input * 2)  # CPZ014
''',
        '''from capataz import program, step

def twice(n: int) -> int:
    return n * 2

@program
async def double(input: int) -> int:
    """Doubles."""
    return await step("double", twice, input)
''',
    ),
)

_PLAIN = "Write a function at the module's top level and give what it works on as arguments: `step(name, fn, *args)`."


def check(context: Context) -> Iterator[Finding]:
    yield from _inside(context)
    for call, scope in context.calls():
        if context.dotted(call, scope) == "capataz.step":
            yield from _function(call, scope, context)


def _inside(context: Context) -> Iterator[Finding]:
    for call, scope in context.calls():
        if not context.surface.is_effect(context.dotted(call, scope)):
            continue
        verb = (context.dotted(call, scope) or "").removeprefix("capataz.")
        if scope in context.reach.steps:
            yield context.finding(
                "CPZ012", call, scope, f"{verb}() is called in {scope.title}, which runs as a step.",
                "Call it in the program, before or after the step.",
            )  # fmt: skip
        elif scope in context.reach.pure:
            yield context.finding(
                "CPZ013", call, scope, f"{verb}() is called in {scope.title}, which is given as {context.reach.pure[scope]} and must be pure.",
                "Do the work before or after, and let the function only look at its argument.",
            )  # fmt: skip


def _function(call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    expr = step_function(call)
    if expr is None:
        return
    if isinstance(expr, ast.Call):
        dotted = context.dotted(expr, scope)
        if dotted == "functools.partial" or context.names.function(expr.func, scope) is not None:
            what = "a partial" if dotted == "functools.partial" else "the result of a call"
            yield context.finding("CPZ014", expr, scope, f"`{shown(expr)}` is {what}, not a plain function.", _PLAIN)
        return
    target = context.names.function(expr, scope)
    bound = isinstance(expr, ast.Attribute) and (
        (isinstance(expr.value, ast.Name) and expr.value.id == "self") or context.types.of(expr.value, scope).cls is not None
    )
    if bound:
        yield context.finding("CPZ014", expr, scope, f"`{shown(expr)}` is a method of an object that the journal does not see.", _PLAIN)
    elif target is not None:
        hidden = sorted(_free(target))
        if hidden:
            yield context.finding("CPZ014", expr, scope, f"{_title(target)} uses `{hidden[0]}` from around it.", _PLAIN)


def _title(scope: Scope) -> str:
    return "the lambda" if isinstance(scope.node, ast.Lambda) else scope.title


def _free(function: Scope) -> set[str]:
    """Names that a nested function takes from the functions around it."""
    found: set[str] = set()
    outer = [place for place in function.chain() if place is not function and place.is_function]
    inner = [s for s in function.module.scopes if function in s.chain()]
    for scope in inner:
        own = list(_until(scope, function))
        read = (node.id for node in scope.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
        found.update(n for n in read if not any(p.binds(n) for p in own) and any(p.binds(n) for p in outer))
    return found


def _until(scope: Scope, last: Scope) -> Iterator[Scope]:
    for place in scope.chain():
        yield place
        if place is last:
            return
