"""CPZ103 to CPZ106: what is allowed and deserves a second look."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import shown
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.types import STATE, Type, keyword

RULES = rules(
    Rule(
        "CPZ103",
        "step that is not idempotent",
        "After a crash nobody knows whether it happened: the run then waits for a person (`capataz resolve`).",
        '''from capataz import program, step

def pay(amount: int) -> str:
    return "paid"

@program
async def order() -> str:
    """Pays."""
    return await step("pay", pay, 5, idempotent=False)  # CPZ103
''',
        '''from capataz import program, step

def pay(order_id: str, amount: int) -> str:
    return "paid"

@program
async def order(input: str) -> str:
    """Pays, by a key that the payment service knows."""
    return await step("pay", pay, input, 5)
''',
    ),
    Rule(
        "CPZ104",
        "mutable module global written from a program",
        "What a program writes into a module's global is lost when its process ends, for example when the run parks, and is built "
        "again by replay only.",
        '''from capataz import program, run

SEEN: list[str] = []

@program
async def look() -> None:
    """Looks."""
    SEEN.append((await run("watcher", prompt="Look")).text)  # CPZ104
''',
        '''from capataz import program, run

@program
async def look() -> list[str]:
    """Looks."""
    seen: list[str] = []
    seen.append((await run("watcher", prompt="Look")).text)
    return seen
''',
    ),
    Rule(
        "CPZ105",
        "unknown model or price",
        "The model that a call names is not known here, or has no price, so that a money budget refuses it before the call.",
        '''from capataz import program, run

@program
async def judge() -> str:
    """Judges."""
    return (await run("judge", prompt="Judge", model="opnai/gpt-5-mini")).text  # CPZ105
''',
        '''from capataz import program, run

@program
async def judge() -> str:
    """Judges."""
    return (await run("judge", prompt="Judge", model="openai/gpt-5-mini")).text
''',
    ),
    Rule(
        "CPZ106",
        "prompt built from unbounded state",
        "The prompt holds a state whose size nothing limits: it grows until it no longer fits the model's window.",
        '''from pydantic import BaseModel

from capataz import program, run, state

class Notes(BaseModel):
    lines: list[str] = []

notes = state("notes", Notes)

@program
async def sum_up() -> str:
    """Sums up."""
    return (await run("writer", prompt=f"Sum up {(await notes.get()).lines}")).text  # CPZ106
''',
        '''from pydantic import BaseModel

from capataz import program, run, state

class Notes(BaseModel):
    lines: list[str] = []

notes = state("notes", Notes)

@program
async def sum_up() -> str:
    """Sums up."""
    return (await run("writer", prompt="Sum up the notes", reads=[notes])).text
''',
    ),
)

_MUTATORS = frozenset("append extend insert remove pop popitem clear sort reverse add discard update setdefault appendleft popleft".split())
_SCALARS = frozenset(f"builtins.{n}" for n in ("int", "float", "bool")) | {"datetime.datetime", "datetime.date", "decimal.Decimal", "uuid.UUID"}


def check(context: Context) -> Iterator[Finding]:
    for call, scope in context.calls():
        dotted = context.dotted(call, scope)
        if dotted == "capataz.step" and context.names.constant(keyword(call, "idempotent"), scope) is False:
            yield context.finding(
                "CPZ103", call, scope, "After a crash it is not known whether this step happened, and the run waits for a person.",
                "Make the step idempotent, for example by a key that the other side knows.",
            )  # fmt: skip
        elif context.is_agent(call, scope):
            yield from _model(call, scope, context)
            yield from _prompt(call, scope, context)
    for scope in context.project.scopes():
        if scope in context.reach.program and scope.is_function:
            yield from _globals(scope, context)


def _model(call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    given = keyword(call, "model")
    name = context.names.constant(given, scope)
    if context.models is None or given is None or not isinstance(name, str):
        return
    problem = context.models.problem(name)
    if problem is not None:
        said = problem if problem.endswith(("?", ".")) else f"{problem}."
        yield context.finding("CPZ105", given, scope, f"{said[:1].upper()}{said[1:]}", "`capataz models` lists models and prices.")


# ---- globals -------------------------------------------------------------------------------------


def _globals(scope: Scope, context: Context) -> Iterator[Finding]:
    for node in scope.nodes:
        name = _written(node, scope, context)
        if name is not None:
            yield context.finding(
                "CPZ104", node, scope, f"The module's global `{name}` is written from a program.",
                "Keep it in a local variable, or in a `state(...)`.",
            )  # fmt: skip


def _written(node: ast.AST, scope: Scope, context: Context) -> str | None:
    """The global of the closure that a node writes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if name in scope.outer_names:
            return name if _declared_global(name, scope) else None
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return _global(value, scope, context)
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()):
            return _module_of(value, scope, context) or _global(value, scope, context)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _MUTATORS:
            return None if context.types.of(value, scope).dotted == STATE else _global(value, scope, context)
        case _:
            return None


def _declared_global(name: str, scope: Scope) -> bool:
    return any(isinstance(node, ast.Global) and name in node.names for node in scope.nodes)


def _global(expr: ast.expr, scope: Scope, context: Context) -> str | None:
    if not isinstance(expr, (ast.Name, ast.Attribute)):
        return None
    if isinstance(expr, ast.Name):
        place = next((p for p in scope.chain() if p.binds(expr.id)), None)
        if place is None or (place.parent is not None and expr.id not in place.imports):
            return None
    dotted = context.names.dotted(expr, scope)
    for module in context.project.modules.values():
        if dotted is not None and dotted.startswith(f"{module.name}.") and dotted.removeprefix(f"{module.name}.") in module.top.values:
            return None if context.types.of(expr, scope).dotted == STATE else dotted.removeprefix(f"{module.name}.")
    return None


def _module_of(expr: ast.expr, scope: Scope, context: Context) -> str | None:
    dotted = context.names.dotted(expr, scope)
    return dotted if dotted in context.project.modules else None


# ---- prompts -------------------------------------------------------------------------------------


def _prompt(call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    prompt = keyword(call, "prompt")
    if prompt is not None and context.types.derives(prompt, scope, lambda c, s: _reads_state(c, s, context)):
        yield context.finding(
            "CPZ106", prompt, scope, f"The prompt `{shown(prompt)}` holds a state whose size nothing limits.",
            "Give the state by reference, `reads=[...]`, or cut what goes into the prompt.",
        )  # fmt: skip


def _reads_state(call: ast.Call, scope: Scope, context: Context) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("get", "until"):
        return False
    owner = context.types.of(call.func.value, scope)
    return owner.dotted == STATE and not (owner.args and _bounded(owner.args[0], context))


def _bounded(model: Type, context: Context, depth: int = 0) -> bool:
    """Whether every field of a model has a size of its own: numbers, literals, enums, limited text and lists."""
    if model.cls is None or depth > 6:
        return model.dotted in _SCALARS
    if any("enum" in base.lower() for base in context.names.base_names(model.cls)):
        return True
    home = context.names.home_of(model.cls)
    fields = context.names.fields(model.cls).values()
    return bool(fields) and all(_bounded_field(field, home, context, depth) for field in fields)


def _bounded_field(field: ast.AnnAssign, home: Scope, context: Context, depth: int) -> bool:
    text = ast.unparse(field)
    if "max_length" in text or "Literal[" in text:
        return True
    return _bounded(context.types.annotated(field.annotation, home), context, depth + 1)
