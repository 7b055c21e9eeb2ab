"""CPZ017, CPZ108: no two effects of one scope have the same explicit key, and no two agents the same name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope

RULES = rules(
    Rule(
        "CPZ017",
        "duplicate explicit key",
        "Two calls of one scope have the same name and the same literal inputs, two regions have the same name, or a state is "
        "declared with two models. They differ only by their order, so an edit may hand one the result of the other.",
        '''from capataz import program, run

@program
async def votes() -> list[str]:
    """Asks twice."""
    one = await run("voter", prompt="Is it safe?")
    two = await run("voter", prompt="Is it safe?")  # CPZ017
    return [one.text, two.text]
''',
        '''from capataz import program, run

@program
async def votes() -> list[str]:
    """Asks twice."""
    one = await run("first-voter", prompt="Is it safe?")
    two = await run("second-voter", prompt="Is it safe?")
    return [one.text, two.text]
''',
    ),
    Rule(
        "CPZ108",
        "two agents with one name",
        "Two calls of one scope give agents the same name and other inputs. Both work, but people, scripts and messages, which name "
        "agents, cannot tell them apart.",
        '''from capataz import program, run

@program
async def both() -> None:
    """Asks twice."""
    await run("judge", prompt="Is it safe?")
    await run("judge", prompt="Is it fast?")  # CPZ108
''',
        '''from capataz import program, run

@program
async def both() -> None:
    """Asks twice."""
    await run("safety-judge", prompt="Is it safe?")
    await run("speed-judge", prompt="Is it fast?")
''',
    ),
)

_LIMITS = frozenset({"max_turns", "budget", "within", "on_exhausted", "accept", "context", "daemon", "timeout", "idempotent"})
_KINDS = {"capataz.run": "agent", "capataz.spawn": "agent", "capataz.step": "step", "capataz.scope": "scope"}
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_NAME_IT = "Give each a name of its own."


def check(context: Context) -> Iterator[Finding]:
    for scope in context.project.scopes():
        if scope in context.reach.program:
            duplicates = list(_effects(scope, context))
            yield from duplicates
            yield from _names(scope, context, {f.place.line for f in duplicates})
    yield from _states(context)
    yield from _constant_keys(context)


# ---- effects and regions -------------------------------------------------------------------------


def _effects(scope: Scope, context: Context) -> Iterator[Finding]:
    seen: dict[object, list[ast.Call]] = {}
    for node in scope.nodes:
        key = _key(node, scope, context) if isinstance(node, ast.Call) else None
        if key is None or not isinstance(node, ast.Call):
            continue
        earlier = next((call for call in seen.get(key, ()) if not _exclusive(call, node, context)), None)
        seen.setdefault(key, []).append(node)
        if earlier is not None:
            kind, name = str(key[1]), str(key[2])
            same = "" if kind == "scope" else " and the same inputs"
            yield context.finding(
                "CPZ017", node, scope, f"This {kind} has the same name {name!r}{same} as the one in line {earlier.lineno}.", _NAME_IT
            )


def _names(scope: Scope, context: Context, said: set[int]) -> Iterator[Finding]:
    """Agents of one name whose inputs differ. ``said``: lines that have a finding already."""
    seen: dict[object, list[ast.Call]] = {}
    for node in scope.nodes:
        if not isinstance(node, ast.Call) or not context.is_agent(node, scope) or not node.args:
            continue
        name = context.names.constant(node.args[0], scope)
        if not isinstance(name, str):
            continue
        calls = seen.setdefault((_region(node, scope, context), name), [])
        earlier = next((call for call in calls if not _exclusive(call, node, context)), None)
        calls.append(node)
        if earlier is not None and node.lineno not in said:
            yield context.finding(
                "CPZ108", node, scope, f"This agent has the same name {name!r} as the one in line {earlier.lineno}.", _NAME_IT
            )


def _key(call: ast.Call, scope: Scope, context: Context) -> tuple[object, ...] | None:
    """What makes an effect's key, when all of it stands in the source; None otherwise."""
    kind = _KINDS.get(context.dotted(call, scope) or "")
    name = context.names.constant(call.args[0], scope) if call.args else ...
    if kind is None or not isinstance(name, str):
        return None
    region = _region(call, scope, context)
    if kind == "scope":
        return (region, kind, name) if isinstance(context.project.parents.get(call), ast.withitem) else None
    inputs: list[str] = []
    for argument in (*call.args[1:], *(k for k in call.keywords if k.arg not in _LIMITS)):
        value = argument.value if isinstance(argument, ast.keyword) else argument
        if (isinstance(argument, ast.keyword) and argument.arg is None) or not _static(value, scope, context):
            return None
        inputs.append(ast.dump(argument))
    return (region, kind, name, *sorted(inputs))


def _region(call: ast.Call, scope: Scope, context: Context) -> tuple[ast.AST, ...]:
    """The regions around a call, by what was entered."""
    found: list[ast.AST] = []
    inner: ast.AST = call
    for node in context.project.around(call):
        if isinstance(node, (ast.With, ast.AsyncWith)) and not isinstance(inner, ast.withitem):
            found += [
                item.context_expr for item in node.items
                if isinstance(item.context_expr, ast.Call) and context.dotted(item.context_expr, scope) == "capataz.scope"
            ]  # fmt: skip
        inner = node
    return tuple(found)


def _static(expr: ast.expr, scope: Scope, context: Context) -> bool:
    """Whether an expression has one value whenever it is reached: literals and names of the module."""
    if isinstance(expr, ast.Constant):
        return True
    if isinstance(expr, (ast.Name, ast.Attribute)):
        return context.names.dotted(expr, scope) is not None
    if isinstance(expr, (ast.List, ast.Tuple)):
        return all(_static(part, scope, context) for part in expr.elts)
    if isinstance(expr, ast.Dict):
        return all(part is not None and _static(part, scope, context) for part in (*expr.keys, *expr.values))
    return isinstance(expr, ast.JoinedStr) and all(isinstance(part, ast.Constant) for part in expr.values)


# ---- branches ------------------------------------------------------------------------------------


def _exclusive(one: ast.AST, other: ast.AST, context: Context) -> bool:
    """Whether at most one of two calls is reached."""
    first, second = dict(_arms(one, context)), dict(_arms(other, context))
    for node, arm in first.items():
        if node in second:
            if arm != second[node] and not {arm, second[node]} <= {"body", "finally"} and "finally" not in (arm, second[node]):
                return True
            if arm == second[node] == "handler" and _holder(one, node, context) is not _holder(other, node, context):
                return True
        elif _leaves(node, one, context):
            return True
    return False


def _arms(node: ast.AST, context: Context) -> Iterator[tuple[ast.AST, str]]:
    """The branching statements around a node, with the arm that it is in."""
    inner = node
    for outer in context.project.around(node):
        if isinstance(outer, ast.If):
            if inner is not outer.test:
                yield outer, "if" if inner in outer.body else "else"
        elif isinstance(outer, ast.IfExp):
            if inner is not outer.test:
                yield outer, "if" if inner is outer.body else "else"
        elif isinstance(outer, (ast.Try, ast.TryStar)):
            yield outer, "handler" if inner in outer.handlers else "finally" if inner in outer.finalbody else "body"
        elif isinstance(outer, ast.Match) and inner is not outer.subject:
            yield outer, f"case {outer.cases.index(inner)}" if isinstance(inner, ast.match_case) else "case"
        inner = outer


def _holder(node: ast.AST, outer: ast.AST, context: Context) -> ast.AST:
    """The direct child of ``outer`` that holds ``node``."""
    inner = node
    for above in context.project.around(node):
        if above is outer:
            return inner
        inner = above
    return inner


def _leaves(branch: ast.AST, node: ast.AST, context: Context) -> bool:
    """Whether the arm that holds ``node`` ends the function or the round, so that what follows is not reached after it."""
    inner = _holder(node, branch, context)
    arms: list[list[ast.stmt]] = []
    if isinstance(branch, ast.If):
        arms = [branch.body, branch.orelse]
    elif isinstance(inner, (ast.match_case, ast.ExceptHandler)):
        return isinstance(inner.body[-1], _ENDS)
    elif isinstance(branch, (ast.Try, ast.TryStar)):
        arms = [branch.body]
    return any(inner in arm and isinstance(arm[-1], _ENDS) for arm in arms)


# ---- states and fan_out --------------------------------------------------------------------------


def _states(context: Context) -> Iterator[Finding]:
    seen: dict[object, tuple[Scope, ast.Call, str | None]] = {}
    for call, scope in context.calls():
        name = context.names.constant(call.args[0], scope) if call.args and context.dotted(call, scope) == "capataz.state" else ...
        if not isinstance(name, str):
            continue
        model = context.names.dotted(call.args[1], scope) if len(call.args) > 1 else None
        first = seen.setdefault(name, (scope, call, model))
        if None not in (model, first[2]) and first[2] != model:
            yield context.finding(
                "CPZ017", call, scope,
                f"The state {name!r} is declared already with another model, in line {first[1].lineno} of {first[0].module.shown}.",
                "Declare it once and import it, or give it a name of its own.",
            )  # fmt: skip


def _constant_keys(context: Context) -> Iterator[Finding]:
    for call, scope in context.program_calls():
        if context.dotted(call, scope) != "capataz.fan_out":
            continue
        for given in call.keywords:
            if given.arg == "key" and isinstance(given.value, ast.Lambda) and isinstance(given.value.body, ast.Constant):
                yield context.finding("CPZ017", given.value, scope, "Every item of the fan_out has the same key.", "Let `key` tell the items apart.")
