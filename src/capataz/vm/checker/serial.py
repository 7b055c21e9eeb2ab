"""CPZ009: what crosses the journal can be serialised."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.reach import step_function
from capataz.vm.checker.types import keyword, unquoted

RULES = rules(
    Rule(
        "CPZ009",
        "type that cannot be serialised",
        "`output=`, `kind=`, the type of a message or a state, or the input or result of a program or a step is no type that has a "
        "JSON form.",
        '''from capataz import program, run

class Verdict:
    risk: str

@program
async def judge() -> str:
    """Judges."""
    return (await run("judge", prompt="Judge", output=Verdict)).risk  # CPZ009
''',
        '''from pydantic import BaseModel

from capataz import program, run

class Verdict(BaseModel):
    risk: str

@program
async def judge() -> str:
    """Judges."""
    return (await run("judge", prompt="Judge", output=Verdict)).risk
''',
    )
)

_FIX = "Use a pydantic model, a dataclass, a TypedDict, an Enum, or plain data."
_BAD = frozenset(
    """typing.Callable collections.abc.Callable typing.IO typing.TextIO typing.BinaryIO io.TextIOWrapper io.BytesIO io.StringIO
    typing.Coroutine typing.Awaitable typing.Generator typing.AsyncGenerator typing.AsyncIterator
    collections.abc.Coroutine collections.abc.Awaitable collections.abc.Generator collections.abc.AsyncGenerator
    collections.abc.AsyncIterator asyncio.Task asyncio.Future asyncio.Event asyncio.Queue asyncio.Lock asyncio.Semaphore
    asyncio.AbstractEventLoop asyncio.StreamReader asyncio.StreamWriter asyncio.TaskGroup threading.Lock threading.Thread
    threading.Event socket.socket sqlite3.Connection sqlite3.Cursor subprocess.Popen types.ModuleType types.FunctionType
    types.TracebackType types.CodeType random.Random contextvars.ContextVar builtins.memoryview builtins.BaseException
    builtins.Exception builtins.slice logging.Logger numpy.ndarray pandas.DataFrame pandas.Series
    torch.Tensor httpx.Client httpx.AsyncClient requests.Session""".split()
)
_GOOD_BASES = frozenset(
    """pydantic.BaseModel pydantic.RootModel pydantic.BaseSettings enum.Enum enum.IntEnum enum.StrEnum enum.Flag enum.IntFlag
    typing.TypedDict typing_extensions.TypedDict typing.NamedTuple builtins.str builtins.int builtins.float builtins.dict
    builtins.list builtins.tuple builtins.set builtins.bytes builtins.frozenset datetime.datetime datetime.date""".split()
)
_DATACLASSES = frozenset({"dataclasses.dataclass", "pydantic.dataclasses.dataclass", "attrs.define"})
_LITERALS = frozenset({"typing.Literal", "typing_extensions.Literal"})
_ARGUMENTS = {"capataz.run": ("output",), "capataz.spawn": ("output",), "capataz.ask": ("kind",), "capataz.receive": ("model",)}
_DEPTH = 8


def check(context: Context) -> Iterator[Finding]:
    for call, scope in context.calls():
        for expr in _types(call, scope, context):
            bad = _Judge(context).value(expr, scope)
            if bad is not None:
                yield context.finding("CPZ009", expr, scope, f"{bad} cannot be serialised.", _FIX)
        if context.dotted(call, scope) == "capataz.step":
            yield from _step(call, scope, context)
    for program in context.reach.programs():
        yield from _signature(program, context)


def _step(call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    """What a step's function says that it returns."""
    function = context.names.function(step_function(call), scope)
    if function is not None and isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        bad = _Judge(context).annotation(function.node.returns, function.parent or function)
        if bad is not None:
            yield context.finding("CPZ009", call, scope, f"{bad}, the result of the step {function.title}, cannot be serialised.", _FIX)


def _types(call: ast.Call, scope: Scope, context: Context) -> Iterator[ast.expr]:
    dotted = context.dotted(call, scope)
    for name in _ARGUMENTS.get(dotted or "", ()):
        found = keyword(call, name)
        if found is not None and not (name == "kind" and isinstance(context.names.constant(found, scope), str)):
            yield found
    if dotted == "capataz.receive" and call.args:
        yield call.args[0]
    if dotted == "capataz.state" and len(call.args) > 1:
        yield call.args[1]


def _signature(program: Scope, context: Context) -> Iterator[Finding]:
    node, outer = program.node, program.parent or program
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    parts = [(arg.annotation, f"the input of {node.name}") for arg in (*node.args.posonlyargs, *node.args.args)]
    for annotation, what in [*parts, (node.returns, f"the result of {node.name}")]:
        bad = _Judge(context).annotation(annotation, outer)
        if bad is not None and annotation is not None:
            yield context.finding("CPZ009", annotation, outer, f"{bad}, {what}, cannot be serialised.", _FIX)


class _Judge:
    """Looks for the first thing in a type that has no JSON form, and says what it is."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: set[ast.ClassDef] = set()

    def value(self, expr: ast.expr, scope: Scope) -> str | None:
        """An expression where a type is expected at run time."""
        if isinstance(expr, (ast.JoinedStr, ast.Dict, ast.Lambda, ast.ListComp, ast.List, ast.Tuple, ast.Set)):
            return f"`{ast.unparse(expr)[:40]}`, a value and no type,"
        if isinstance(expr, ast.Constant) and expr.value is not None:
            return f"{expr.value!r}, a value and no type,"
        if isinstance(expr, ast.Call):
            dotted = self._context.dotted(expr, scope)
            return f"`{ast.unparse(expr)[:40]}`, a value and no type," if self._context.names.class_named(dotted) is not None else None
        function = self._context.names.function(expr, scope)
        if function is not None:
            return f"{function.title}, a function,"
        dotted = self._context.names.dotted(expr, scope) or ""
        if dotted.startswith("builtins.") and not isinstance(getattr(builtins, dotted[9:], int), type):
            return f"{dotted[9:]}, a function,"
        return self.annotation(expr, scope)

    def annotation(self, expr: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
        expr = unquoted(expr)
        if expr is None or depth > _DEPTH:
            return None
        if isinstance(expr, ast.BinOp):
            return self.annotation(expr.left, scope, depth + 1) or self.annotation(expr.right, scope, depth + 1)
        if isinstance(expr, ast.Subscript):
            return self._subscript(expr, scope, depth)
        dotted = self._context.names.dotted(expr, scope)
        if dotted in _BAD:
            return dotted.removeprefix("builtins.")
        cls = self._context.names.class_named(dotted)
        if cls is not None:
            return self._class(cls, depth)
        found, place = self._context.names.single(expr, scope)
        return self.annotation(found, place, depth + 1) if found is not expr and not isinstance(found, (ast.Call, ast.Constant)) else None

    def _subscript(self, expr: ast.Subscript, scope: Scope, depth: int) -> str | None:
        base = self._context.names.dotted(expr.value, scope)
        if base in _BAD:
            return (base or "").removeprefix("builtins.")
        if base in _LITERALS:
            return None
        parts = expr.slice.elts if isinstance(expr.slice, ast.Tuple) else [expr.slice]
        if base is not None and base.endswith(".Annotated"):
            parts = parts[:1]
        found = self.annotation(expr.value, scope, depth + 1)
        for part in parts:
            found = found or self.annotation(part, scope, depth + 1)
        return found

    def _class(self, cls: ast.ClassDef, depth: int) -> str | None:
        """A class of the closure: what kind it is, then its fields."""
        if cls in self._seen:
            return None
        self._seen.add(cls)
        names, home = self._context.names, self._context.names.home_of(cls)
        if not self._is_data(cls):
            return f"{cls.name}, a plain class,"
        for name, field in names.fields(cls).items():
            bad = None if self._excluded(field) else self.annotation(field.annotation, home, depth + 1)
            if bad is not None:
                return bad if " of " in bad else f"{bad.rstrip(',')} (field `{name}` of {cls.name})"
        return None

    @staticmethod
    def _excluded(field: ast.AnnAssign) -> bool:
        """A class variable, or a field that its model leaves out."""
        text = ast.unparse(field.annotation)
        return "ClassVar" in text or "InitVar" in text or "SkipValidation" in text

    def _is_data(self, cls: ast.ClassDef) -> bool:
        names, home = self._context.names, self._context.names.home_of(cls)
        decorated = {names.dotted(d.func if isinstance(d, ast.Call) else d, home) for d in cls.decorator_list}
        if decorated & _DATACLASSES:
            return True
        bases = names.base_names(cls)
        own = {f"{names.home_of(b).dotted}.{b.name}" for b in names.bases(cls)}
        unknown = {b for b in bases - own if b not in ("builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol")}
        if bases & _GOOD_BASES or any(self._is_data(base) for base in names.bases(cls)):
            return True
        hooks = any(isinstance(n, ast.FunctionDef) and n.name.startswith("__get_pydantic") for n in cls.body)
        return hooks or bool({b for b in unknown if b not in _BAD and not b.startswith("builtins.")})
