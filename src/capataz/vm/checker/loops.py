"""CPZ101, CPZ102: work that nobody limits."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from capataz.vm.checker.bound import Counter
from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import ENDLESS, shown
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope

RULES = rules(
    Rule(
        "CPZ101",
        "endless loop without `loop`",
        "A loop that never ends works, but its journal grows for ever. `loop` archives each finished epoch, so that the "
        "hundred-thousandth resumes as fast as the tenth.",
        '''from capataz import program, run, sleep

@program
async def watch() -> None:
    """Looks every hour."""
    while True:  # CPZ101
        await run("watcher", prompt="Look", max_turns=3)
        await sleep("1h")
''',
        '''from capataz import loop, program, run

async def look(count: int) -> int:
    await run("watcher", prompt="Look", max_turns=3)
    return count + 1

@program
async def watch() -> None:
    """Looks every hour."""
    await loop(look, 0, every="1h")
''',
    ),
    Rule(
        "CPZ102",
        "agents without a limit",
        "A `fan_out` over something whose length nothing limits, or a loop that agent output decides, starts agents, and no budget "
        "covers it.",
        '''from capataz import fan_out, program, run

async def judge(path: str) -> str:
    return (await run("judge", prompt=path)).text

@program
async def audit(input: list[str]) -> list[str]:
    """Judges all files."""
    return await fan_out(input, judge, limit=8)  # CPZ102
''',
        '''from capataz import budget, fan_out, program, run

async def judge(path: str) -> str:
    return (await run("judge", prompt=path)).text

@program(budget=budget(usd=5, agents=200))
async def audit(input: list[str]) -> list[str]:
    """Judges all files."""
    return await fan_out(input, judge, limit=8)
''',
    ),
)

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_BUDGET = "Give the program, or a scope around it, a `budget(...)`."


def endless(context: Context) -> Iterator[Finding]:
    for scope in context.project.scopes():
        if scope in context.reach.program:
            for node in scope.nodes:
                if is_endless(node, scope, context) and _waits(node):
                    yield context.finding(
                        "CPZ101", node, scope, "This loop never ends, and its journal grows for ever.",
                        "Put the body into a function and write `await loop(body, carry, every=...)`.",
                    )  # fmt: skip


def is_endless(node: ast.AST, scope: Scope, context: Context) -> bool:
    """A loop with neither an end nor a way out."""
    if isinstance(node, ast.While):
        value = context.names.constant(node.test, scope)
        return value is not ... and bool(value) and not _exits(node.body)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return _goes_on(node.iter, scope, context) and not _exits(node.body)
    return False


def _goes_on(expr: ast.expr, scope: Scope, context: Context) -> bool:
    if not isinstance(expr, ast.Call):
        return False
    dotted = context.dotted(expr, scope)
    if dotted in ENDLESS:
        return dotted != "itertools.repeat" or len(expr.args) == 1
    sentinel = dotted == "builtins.iter" and len(expr.args) == 2 and context.names.dotted(expr.args[0], scope) in ("builtins.int", "builtins.object")
    return sentinel or (isinstance(expr.func, ast.Attribute) and expr.func.attr == "changes")


def _exits(body: Sequence[ast.AST], inner: bool = False) -> bool:
    for node in body:
        if isinstance(node, (ast.Return, ast.Raise)) or (isinstance(node, ast.Break) and not inner):
            return True
        if not isinstance(node, _FUNCTIONS) and _exits(list(ast.iter_child_nodes(node)), inner or isinstance(node, _LOOPS)):
            return True
    return False


def _waits(loop: ast.AST) -> bool:
    return any(isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for node in ast.walk(loop))


def unlimited(context: Context, counter: Counter) -> Iterator[Finding]:
    """Of what the count found. ``counter`` has counted the programs."""
    for repeat in counter.repeats.values():
        if repeat.kind == "fan_out":
            yield context.finding(
                "CPZ102", repeat.node, repeat.scope, "The fan_out starts as many agents as there are items, which nothing limits.",
                f"{_BUDGET[:-1]}, or cut the items: `items[:20]`.",
            )  # fmt: skip
        elif repeat.kind == "while":
            if not is_endless(repeat.node, repeat.scope, context):
                yield context.finding(
                    "CPZ102", repeat.node, repeat.scope, "The loop starts agents until something comes true, and nothing limits its rounds.",
                    f"{_BUDGET[:-1]}, or write `for round in range(N)`.",
                )  # fmt: skip
        elif isinstance(repeat.node, ast.expr) and from_agents(repeat.node, repeat.scope, context):
            yield context.finding(
                "CPZ102", repeat.node, repeat.scope,
                f"The loop starts agents for each item of `{shown(repeat.node)}`, which an agent decides.",
                f"{_BUDGET[:-1]}, or cut the items: `items[:20]`.",
            )  # fmt: skip


def from_agents(expr: ast.expr, scope: Scope, context: Context) -> bool:
    """Whether a value comes from an agent: by what it is made of, or by a type that agents give."""
    if context.types.derives(expr, scope, context.is_agent):
        return True
    outputs = {
        context.types.annotated(k.value, place).cls
        for call, place in context.calls() if context.is_agent(call, place) for k in call.keywords if k.arg == "output"
    }  # fmt: skip
    return any(
        context.types.of(node, scope).cls in outputs - {None} for node in ast.walk(expr) if isinstance(node, (ast.Name, ast.Attribute))
    )
