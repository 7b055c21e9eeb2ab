"""CPZ010, CPZ011: state is declared before it is written, and written as its model allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import shown
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.surface import STATE_WRITES
from capataz.vm.checker.types import STATE, Type, keyword

RULES = rules(
    Rule(
        "CPZ010",
        "writing undeclared state",
        "What is written, or given to an agent as `reads=`, `writes=` or `owns=`, is no state that `state(...)` declares.",
        '''from capataz import program, run

@program
async def collect() -> None:
    """Collects findings."""
    await run("finder", prompt="Find", writes=["findings"])  # CPZ010
''',
        '''from pydantic import BaseModel

from capataz import program, run, state

class Findings(BaseModel):
    count: int = 0

findings = state("findings", Findings)

@program
async def collect() -> None:
    """Collects findings."""
    await run("finder", prompt="Find", writes=[findings])
''',
    ),
    Rule(
        "CPZ011",
        "state write that its model does not allow",
        "A state is set to another type, a field that its model does not have is changed, or a field is assigned without a write.",
        '''from typing import Literal

from pydantic import BaseModel

from capataz import program, state

class Ticket(BaseModel):
    status: Literal["open", "closed"] = "open"

ticket = state("ticket", Ticket)

@program
async def close() -> None:
    """Closes the ticket."""
    await ticket.transition("state", "open", "closed")  # CPZ011
''',
        '''from typing import Literal

from pydantic import BaseModel

from capataz import program, state

class Ticket(BaseModel):
    status: Literal["open", "closed"] = "open"

ticket = state("ticket", Ticket)

@program
async def close() -> None:
    """Closes the ticket."""
    await ticket.transition("status", "open", "closed")
''',
    ),
)

_DECLARE = 'Declare it: `NAME = state("name", Model)`, and give that.'


def check(context: Context) -> Iterator[Finding]:
    for call, scope in context.calls():
        if context.is_agent(call, scope):
            yield from _references(call, scope, context)
        if isinstance(call.func, ast.Attribute) and call.func.attr in STATE_WRITES:
            yield from _write(call, call.func, scope, context)
    for scope in context.project.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and context.types.of(node.value, scope).dotted == STATE:
                yield context.finding(
                    "CPZ011", node, scope, f"Assigning `{shown(node)}` writes nothing into the state.",
                    f"Write `await {shown(node.value)}.update(fn)` with a function that gives the new value.",
                )  # fmt: skip


def _references(call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    for argument in ("reads", "writes", "owns"):
        given = keyword(call, argument)
        found, place = context.names.single(given, scope)
        if not isinstance(found, (ast.List, ast.Tuple)):
            if isinstance(found, (ast.Constant, ast.Call)) and given is not None:
                yield context.finding("CPZ010", given, scope, f"`{argument}={shown(given)}` is no list of states.", _DECLARE)
            continue
        for item in found.elts:
            if _undeclared(item, place, context):
                yield context.finding("CPZ010", item, place, f"`{shown(item)}` in `{argument}=` is no declared state.", _DECLARE)


def _undeclared(expr: ast.expr, scope: Scope, context: Context) -> bool:
    """Whether it is known to be no state. What cannot be told passes."""
    if isinstance(expr, (ast.Constant, ast.JoinedStr, ast.Dict, ast.List, ast.Lambda)):
        return True
    kind = context.types.of(expr, scope)
    if kind.dotted == STATE:
        return False
    if isinstance(expr, ast.Name) and _unbound(expr.id, scope, context):
        return True
    if context.names.class_of(expr, scope) is not None or context.names.function(expr, scope) is not None:
        return True
    found, _ = context.names.single(expr, scope)
    return kind.cls is not None or isinstance(found, (ast.Constant, ast.Dict, ast.List))


def _unbound(name: str, scope: Scope, context: Context) -> bool:
    bound = any(place.binds(name) for place in scope.chain())
    return not bound and not scope.module.stars and context.names.dotted(ast.Name(name, ast.Load()), scope) is None


def _write(call: ast.Call, func: ast.Attribute, scope: Scope, context: Context) -> Iterator[Finding]:
    if isinstance(func.value, ast.Name) and _unbound(func.value.id, scope, context) and scope in context.reach.program:
        yield context.finding("CPZ010", call, scope, f"`{func.value.id}` is written and nothing declares it.", _DECLARE)
        return
    owner = context.types.of(func.value, scope)
    model = owner.args[0] if owner.dotted == STATE and owner.args else None
    if model is None or model.cls is None or not call.args:
        return
    if func.attr == "transition":
        yield from _transition(call, model, scope, context)
    elif func.attr == "set":
        yield from _set(call, model, scope, context)


def _transition(call: ast.Call, model: Type, scope: Scope, context: Context) -> Iterator[Finding]:
    assert model.cls is not None
    fields = context.names.fields(model.cls)
    name = context.names.constant(call.args[0], scope)
    if isinstance(name, str) and name not in fields:
        yield context.finding(
            "CPZ011", call.args[0], scope, f"{model.cls.name} has no field `{name}`.", f"Name one of {', '.join(fields) or 'its fields'}."
        )
        return
    allowed = _literals(fields[name].annotation, context.names.home_of(model.cls), context) if isinstance(name, str) else None
    for arg in call.args[1:3]:
        value = context.names.constant(arg, scope)
        if allowed is not None and value is not ... and value not in allowed:
            yield context.finding(
                "CPZ011", arg, scope, f"{model.cls.name}.{name} is never {value!r}.", f"Write one of {', '.join(map(repr, allowed))}."
            )


def _literals(annotation: ast.expr, scope: Scope, context: Context) -> list[object] | None:
    found, place = context.names.single(annotation, scope)
    if isinstance(found, ast.Subscript) and context.names.dotted(found.value, place) in ("typing.Literal", "typing_extensions.Literal"):
        parts = found.slice.elts if isinstance(found.slice, ast.Tuple) else [found.slice]
        values = [context.names.constant(p, place) for p in parts]
        return None if ... in values else values
    return None


def _set(call: ast.Call, model: Type, scope: Scope, context: Context) -> Iterator[Finding]:
    assert model.cls is not None
    value, given = call.args[0], context.types.of(call.args[0], scope)
    plain = (given.dotted or "").startswith("builtins.") and given.dotted != "builtins.dict"
    other = given.cls is not None and given.cls is not model.cls and model.cls not in _all_bases(given.cls, context)
    if plain or other:
        name = given.cls.name if given.cls is not None else (given.dotted or "").removeprefix("builtins.")
        yield context.finding("CPZ011", value, scope, f"A {name} is no {model.cls.name}.", f"Give a {model.cls.name}.")


def _all_bases(cls: ast.ClassDef, context: Context, depth: int = 0) -> set[ast.ClassDef]:
    found: set[ast.ClassDef] = set()
    for base in context.names.bases(cls) if depth < 10 else ():
        found |= {base} | _all_bases(base, context, depth + 1)
    return found
