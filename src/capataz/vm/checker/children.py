"""CPZ018 to CPZ021, CPZ107: child programs exist, are programs, and get the input that they take."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from capataz.contracts.errors import CapatazError, NotFound
from capataz.vm.checker.context import Context
from capataz.vm.checker.counts import shown
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.reach import is_program, program_decorator
from capataz.vm.checker.types import Type, Types, keyword

RULES = rules(
    Rule(
        "CPZ018",
        "wrong input of a child program",
        "`run` or `spawn` gives a program an input that is not of the type that it takes, or none where it needs one.",
        '''from pydantic import BaseModel

from capataz import program, run

class Job(BaseModel):
    pr: int

@program
async def child(input: Job) -> int:
    """The child."""
    return input.pr

@program
async def parent() -> int:
    """The parent."""
    return await run(child, input="42")  # CPZ018
''',
        '''from pydantic import BaseModel

from capataz import program, run

class Job(BaseModel):
    pr: int

@program
async def child(input: Job) -> int:
    """The child."""
    return input.pr

@program
async def parent() -> int:
    """The parent."""
    return await run(child, input=Job(pr=42))
''',
    ),
    Rule(
        "CPZ019",
        "run of something that is no program",
        "`run` and `spawn` take an agent's name, a `@program`, or `load(...)`.",
        '''from capataz import program, run

async def helper() -> int:
    return 1

@program
async def parent() -> int:
    """The parent."""
    return await run(helper)  # CPZ019
''',
        '''from capataz import program, run

@program
async def helper() -> int:
    """A child."""
    return 1

@program
async def parent() -> int:
    """The parent."""
    return await run(helper)
''',
    ),
    Rule(
        "CPZ020",
        "child program that cannot be used",
        "`load(...)` names a program that does not parse, that has no such `@program`, or in which the checker finds errors.",
        '''from capataz import load, program, run

@program
async def parent() -> None:
    """The parent."""
    await run(load("capataz.programs.single:no_such_program"))  # CPZ020
''',
        '''from capataz import load, program, run

@program
async def parent(input: str) -> None:
    """The parent."""
    await run(load(input))
''',
    ),
    Rule(
        "CPZ107",
        "child program that is not there yet",
        "`load(...)` names a program that cannot be found now. An agent or a step may write it later; it is checked at its first use.",
        '''from capataz import load, program, run

@program
async def parent() -> None:
    """The parent."""
    await run(load("no_such_file.py:main"))  # CPZ107
''',
        '''from capataz import load, program, run

@program
async def parent(input: str) -> None:
    """The parent."""
    await run(load(input))
''',
    ),
    Rule(
        "CPZ021",
        "program of the wrong shape",
        "A program is an `async def` at a module's top level that takes one input or none.",
        '''from capataz import program

@program
async def both(repo: str, branch: str) -> str:  # CPZ021
    """Takes two."""
    return repo + branch
''',
        '''from pydantic import BaseModel

from capataz import program

class Place(BaseModel):
    repo: str
    branch: str

@program
async def both(input: Place) -> str:
    """Takes a model."""
    return input.repo + input.branch
''',
    ),
)

Load = Callable[[str], "Context | CapatazError"]
"""The context of a program on disk, or why it cannot be used (``NotFound``: it is not there)."""

_PLAIN = frozenset(f"builtins.{n}" for n in ("str", "int", "float", "bool", "bytes"))
_LISTS = frozenset({"builtins.list", "builtins.tuple", "builtins.set"})


def check(context: Context, load: Load) -> Iterator[Finding]:
    for scope in context.project.scopes():
        if program_decorator(scope, context.names) is not None:
            yield from _shape(scope, context)
    for call, scope in context.calls():
        if context.is_agent(call, scope) and call.args:
            yield from _child(call, scope, context, load)


def _shape(scope: Scope, context: Context) -> Iterator[Finding]:
    node = scope.node
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    given = node.args
    named = [*given.posonlyargs, *given.args]
    wrong: tuple[str, str] | None = None
    if not scope.is_async or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in scope.nodes):
        wrong = ("is no `async def` function that returns", "Write `async def`, and `return` its result.")
    elif scope.parent is not None and (scope.parent.parent is not None or scope.owner is not None):
        wrong = ("is not at its module's top level", "Put it at the module's top level.")
    elif len(named) > 1 or given.kwonlyargs or given.vararg or given.kwarg:
        wrong = ("takes more than one input", "Put the fields into one model and take that as `input`.")
    if wrong is not None:
        yield context.finding("CPZ021", node, scope, f"Program {node.name} {wrong[0]}.", wrong[1])


def _child(call: ast.Call, scope: Scope, context: Context, load: Load) -> Iterator[Finding]:
    first = call.args[0]
    found, place = context.names.single(first, scope)
    if isinstance(found, ast.Call) and context.dotted(found, place) == "capataz.load" and found.args:
        reference = context.names.constant(found.args[0], place)
        if isinstance(reference, str):
            yield from _loaded(call, reference, scope, context, load)
        return
    if isinstance(found, ast.Call) and (called := context.names.function(found.func, place)) is not None:
        fix = f"Write `run({called.title}, input=...)`." if is_program(called, context.names) else "Give an agent's name or a program."
        yield context.finding("CPZ019", first, scope, f"`{shown(first)}` is a call, not a program.", fix)
        return
    target = context.names.function(first, scope)
    if target is not None and is_program(target, context.names):
        for node, message, fix in _input(call, scope, target, context, context):
            yield context.finding("CPZ018", node, scope, message, fix)
    elif target is not None or isinstance(found, (ast.List, ast.Dict, ast.Tuple)) or _is_number(found) or context.names.class_of(first, scope):
        yield context.finding(
            "CPZ019", first, scope, f"`{shown(first)}` is neither an agent's name nor a program.",
            "Put `@program` above it, or await it as it is." if target is not None else "Give an agent's name or a program.",
        )  # fmt: skip


def _is_number(expr: ast.expr | None) -> bool:
    return isinstance(expr, ast.Constant) and expr.value is not None and not isinstance(expr.value, str)


def _loaded(call: ast.Call, reference: str, scope: Scope, context: Context, load: Load) -> Iterator[Finding]:
    child = load(reference)
    if isinstance(child, NotFound):
        yield context.finding(
            "CPZ107", call, scope, f"The child program {reference} is not there yet, so nothing is known of it.",
            "Write it before the program runs, or mend the name.",
        )  # fmt: skip
        return
    if isinstance(child, CapatazError):
        yield context.finding(
            "CPZ020", call, scope, f"The child program {reference} cannot be used: {child.message.rstrip('.')}.", "Mend it, or name another."
        )
        return
    name = reference.rpartition(":")[2].rpartition("/")[2].removesuffix(".py")
    target = next((p for p in child.reach.programs() if p.title == name), None)
    if target is not None:
        for node, message, fix in _input(call, scope, target, context, child):
            yield context.finding("CPZ018", node, scope, message, fix)


# ---- inputs --------------------------------------------------------------------------------------

Complaint = tuple[ast.AST, str, str]


def _input(call: ast.Call, scope: Scope, target: Scope, context: Context, home: Context) -> Iterator[Complaint]:
    """What is wrong with a child's input. ``home``: the context of the child's source."""
    assert isinstance(target.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if any(k.arg is None for k in call.keywords):
        return
    parameters = [*target.node.args.posonlyargs, *target.node.args.args]
    given = keyword(call, "input")
    if not parameters:
        if given is not None:
            yield given, f"Program {target.title} takes no input.", "Leave `input` out."
        return
    annotation = parameters[0].annotation
    wanted = home.types.annotated(annotation, target.parent or target)
    if given is None:
        if not target.node.args.defaults and annotation is not None and not _takes_none(annotation):
            yield call, f"Program {target.title} needs an input of type {shown(annotation)}.", f"Add `input={shown(annotation)}(...)`."
        return
    yield from _Fit(context, home).check(given, scope, wanted, annotation)


def _takes_none(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return "None" in text or "Optional" in text or text in ("Any", "typing.Any", "object")


class _Fit:
    """Whether a value can be of a type."""

    def __init__(self, context: Context, home: Context) -> None:
        self._context = context
        self._home = home

    def check(self, value: ast.expr, scope: Scope, wanted: Type, annotation: ast.expr | None) -> Iterator[Complaint]:
        given = self._context.types.of(value, scope)
        found, place = self._context.names.single(value, scope)
        what = shown(annotation) if annotation is not None else "its input"
        if wanted.cls is not None:
            yield from self._model(value, found, place, given, wanted.cls)
        elif (wanted.dotted in _PLAIN and self._differs(given, wanted.dotted)) or (wanted.dotted in _LISTS and (given.dotted in _PLAIN or given.cls is not None or given.dotted == "builtins.dict")) or (wanted.dotted == "builtins.dict" and (given.dotted in (*_PLAIN, *_LISTS))):
            yield value, f"`{shown(value)}` is no {what}.", f"Give a {what}."

    @staticmethod
    def _differs(given: Type, wanted: str) -> bool:
        if given.cls is not None or given.dotted in (*_LISTS, "builtins.dict"):
            return True
        widened = wanted == "builtins.float" and given.dotted == "builtins.int"
        return given.dotted in _PLAIN and given.dotted != wanted and not widened

    def _model(self, value: ast.expr, found: ast.expr | None, place: Scope, given: Type, wanted: ast.ClassDef) -> Iterator[Complaint]:
        if given.dotted in _PLAIN or given.dotted in _LISTS:
            if not self._is_plain_subclass(wanted):
                yield value, f"`{shown(value)}` is no {wanted.name}.", f"Give a {wanted.name}."
        elif given.cls is not None and self._context is self._home and not self._same(given.cls, wanted):
            yield value, f"A {given.cls.name} is no {wanted.name}.", f"Give a {wanted.name}."
        elif isinstance(found, ast.Dict) and all(isinstance(k, ast.Constant) for k in found.keys):
            keys = {str(k.value): v for k, v in zip(found.keys, found.values, strict=True) if isinstance(k, ast.Constant)}
            yield from self._fields(value, keys, place, wanted)
        elif isinstance(found, ast.Call) and given.cls is wanted and not found.args and all(k.arg for k in found.keywords):
            yield from self._fields(value, {k.arg or "": k.value for k in found.keywords}, place, wanted)

    def _is_plain_subclass(self, cls: ast.ClassDef) -> bool:
        """Enums, root models and the like: made of plain values."""
        bases = self._home.names.base_names(cls)
        return any("enum" in b.lower() or "RootModel" in b or b.startswith("builtins.") for b in bases)

    def _same(self, given: ast.ClassDef, wanted: ast.ClassDef) -> bool:
        return given is wanted or any(self._same(base, wanted) for base in self._context.names.bases(given))

    def _fields(self, value: ast.expr, given: dict[str, ast.expr], place: Scope, model: ast.ClassDef) -> Iterator[Complaint]:
        fields = self._home.names.fields(model)
        if not fields or not self._visible(model):
            return
        types: Types = self._home.types
        for name, expr in given.items():
            if name not in fields:
                close = get_close_matches(name, fields, n=1)
                yield expr, f"{model.name} has no field `{name}`.", f"Write `{close[0]}`." if close else f"It has {', '.join(fields)}."
                return
            wanted = types.annotated(fields[name].annotation, self._home.names.home_of(model))
            kind = self._context.types.of(expr, place)
            if wanted.dotted in _PLAIN and isinstance(expr, ast.Constant) and self._differs(kind, wanted.dotted):
                yield expr, f"`{shown(expr)}` is no {shown(fields[name].annotation)}, which {model.name}.{name} is.", "Give a value of that type."
        missing = [n for n, field in fields.items() if n not in given and not self._optional(field)]
        if missing:
            yield value, f"{model.name} needs `{missing[0]}`.", f"Add `{missing[0]}`."

    def _visible(self, model: ast.ClassDef) -> bool:
        """Whether all fields are known under their own names: every base is, and no alias or extra field is allowed."""
        text = ast.unparse(model)
        bases = self._home.names.base_names(model)
        own = {f"{self._home.names.home_of(b).dotted}.{b.name}" for b in self._home.names.bases(model)}
        known = {"pydantic.BaseModel", "typing.TypedDict", "typing_extensions.TypedDict", "typing.NamedTuple"}
        hidden = ("alias", "extra", "model_validator", "root_validator", "kw_only", "total=False", "__init__", "init=False")
        return not any(word in text for word in hidden) and bases - own <= known

    @staticmethod
    def _optional(field: ast.AnnAssign) -> bool:
        text = ast.unparse(field.annotation)
        if "ClassVar" in text or "NotRequired" in text:
            return True
        if isinstance(field.value, ast.Call) and ast.unparse(field.value.func).endswith("Field"):
            given = {k.arg for k in field.value.keywords}
            first = field.value.args[0] if field.value.args else None
            required = isinstance(first, ast.Constant) and first.value is ...
            return bool(given & {"default", "default_factory"}) or (first is not None and not required)
        return field.value is not None or "default" in text
