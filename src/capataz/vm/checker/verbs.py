"""CPZ006 to CPZ008, CPZ022: verbs that exist, called as they are defined, with values that they take."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from capataz.contracts.errors import UsageError
from capataz.contracts.units import seconds, usd
from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.surface import Form, Verb
from capataz.vm.checker.types import HANDLE, keyword

RULES = rules(
    Rule(
        "CPZ006",
        "unknown verb",
        "A name that Capataz does not have, or a method that a handle or a state does not have.",
        '''from capataz import program, spwan  # CPZ006

@program
async def work() -> None:
    """Starts a worker."""
    worker = await spwan("worker", prompt="Work")
    await worker
''',
        '''from capataz import program, spawn

@program
async def work() -> None:
    """Starts a worker."""
    worker = await spawn("worker", prompt="Work")
    await worker
''',
    ),
    Rule(
        "CPZ007",
        "wrong arguments of a verb",
        "A verb is called with an argument that it does not take, or without one that it needs.",
        '''from capataz import program, run

@program
async def judge() -> str:
    """Judges."""
    said = await run("judge", prompt="Judge", ouput=str)  # CPZ007
    return said.text
''',
        '''from capataz import program, run

@program
async def judge() -> str:
    """Judges."""
    said = await run("judge", prompt="Judge", output=str)
    return said
''',
    ),
    Rule(
        "CPZ008",
        "a value that a verb does not take",
        "A literal argument that the verb refuses when it is called: an unknown word, a bad duration or amount, a count below one.",
        '''from capataz import program, run

@program
async def judge() -> str:
    """Judges."""
    return (await run("judge", prompt="Judge", type="reader")).text  # CPZ008
''',
        '''from capataz import program, run

@program
async def judge() -> str:
    """Judges."""
    return (await run("judge", prompt="Judge", type="read")).text
''',
    ),
    Rule(
        "CPZ022",
        "scope that is not entered",
        "`scope` names a region only as a context manager, and with a budget or a deadline only under `async with`.",
        '''from capataz import budget, program, run, scope

@program
async def review() -> str:
    """Reviews."""
    with scope("review", budget=budget(usd=1)):  # CPZ022
        return (await run("judge", prompt="Judge")).text
''',
        '''from capataz import budget, program, run, scope

@program
async def review() -> str:
    """Reviews."""
    async with scope("review", budget=budget(usd=1)):
        return (await run("judge", prompt="Judge")).text
''',
    ),
)

_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("run", "type"): ("reason", "read", "general"), ("spawn", "type"): ("reason", "read", "general"),
    ("run", "on_exhausted"): ("raise", "pause"), ("spawn", "on_exhausted"): ("raise", "pause"),
    ("fan_out", "on_error"): ("raise", "collect"), ("tell", "severity"): ("info", "page"),
    ("ask", "kind"): ("approval", "choice", "text"), ("state", "reach"): ("run", "project"),
}  # fmt: skip
_COUNTS = {("run", "max_turns"): 1, ("spawn", "max_turns"): 1, ("fan_out", "limit"): 1, ("state", "version"): 1, ("budget", "tokens"): 0,
           ("budget", "turns"): 0, ("budget", "agents"): 0, ("budget", "tool_calls"): 0}  # fmt: skip
_DURATIONS = frozenset({"within", "timeout", "wall", "sandbox_seconds", "every"})


def check(context: Context) -> Iterator[Finding]:
    yield from _imports(context)
    for scope in context.project.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Attribute):
                yield from _attribute(node, scope, context)
            elif isinstance(node, ast.Call):
                yield from _call(node, scope, context)
    yield from _scopes(context)


# ---- names ---------------------------------------------------------------------------------------


def _imports(context: Context) -> Iterator[Finding]:
    for scope in context.project.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in ("capataz", "capataz.coding"):
                for alias in node.names:
                    dotted = f"{node.module}.{alias.name}"
                    if alias.name != "*" and context.surface.unknown(dotted):
                        yield _unknown(dotted, alias, scope, context)


def _attribute(node: ast.Attribute, scope: Scope, context: Context) -> Iterator[Finding]:
    dotted = context.names.dotted(node, scope)
    if dotted is not None and dotted.startswith("capataz."):
        own = context.names.dotted(node.value, scope) in ("capataz", "capataz.coding")
        if own and context.surface.unknown(dotted):
            yield _unknown(dotted, node, scope, context)
        return
    parent = context.project.parents.get(node)
    if not isinstance(parent, ast.Call) or parent.func is not node:
        return
    owner = context.types.of(node.value, scope).dotted or ""
    methods = context.surface.methods(owner)
    if methods and node.attr not in methods:
        what = "a handle" if owner == HANDLE else "a state"
        yield context.finding(
            "CPZ006", node, scope, f"{what} has no method `{node.attr}`.", f"Use one of {', '.join(methods)}{_close(node.attr, list(methods))}."
        )


def _unknown(dotted: str, node: ast.AST, scope: Scope, context: Context) -> Finding:
    module, _, name = dotted.rpartition(".")
    known = context.surface.names(module)
    close = get_close_matches(name, known, n=1)
    fix = f"Write `{close[0]}`." if close else f"Use a verb that {module} has: {', '.join(n for n in known if n[0].islower())}."
    return context.finding("CPZ006", node, scope, f"{module} has no `{name}`.", fix)


def _close(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; `{close[0]}` may be meant" if close else ""


# ---- arguments -----------------------------------------------------------------------------------


def _call(call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    verb = context.verb(call, scope)
    if verb is None or not verb.forms:
        return
    wrong = _wrong(call, scope, verb, context)
    if wrong is not None:
        node, message, fix = wrong
        yield context.finding("CPZ007", node, scope, message, fix)
        return
    yield from _values(call, scope, verb, context)


def _wrong(call: ast.Call, scope: Scope, verb: Verb, context: Context) -> tuple[ast.AST, str, str] | None:
    """The complaint of the form that fits best."""
    name = verb.name.removeprefix("capataz.")
    forms = [f for f in verb.forms if _is_form(f, call, scope, context)] or list(verb.forms)
    given = {keyword_.arg for keyword_ in call.keywords}
    forms.sort(key=lambda form: len(form.required - given) if len(call.args) <= len(form.positional) else 0)
    found = [_misfit(form, call, name) for form in forms]
    return None if None in found else found[0]


def _is_form(form: Form, call: ast.Call, scope: Scope, context: Context) -> bool:
    """Whether a form of ``run`` or ``spawn`` is meant: one for agents, or one for programs."""
    if form.verb not in ("run", "spawn") or not call.args:
        return form.verb not in ("run", "spawn") or "prompt" in form.keywords
    first = call.args[0]
    agent = isinstance(first, (ast.Constant, ast.JoinedStr)) or (
        context.names.function(first, scope) is None and any(k.arg == "prompt" for k in call.keywords)
    )
    return agent == ("prompt" in form.keywords)


def _misfit(form: Form, call: ast.Call, name: str) -> tuple[ast.AST, str, str] | None:
    spread = any(isinstance(a, ast.Starred) for a in call.args)
    open_ended = any(k.arg is None for k in call.keywords)
    if not form.many and not spread and len(call.args) > len(form.positional):
        return call.args[len(form.positional)], f"{name}() takes {_most(len(form.positional))} without a name.", _named(form)
    given = {k.arg for k in call.keywords if k.arg is not None}
    for keyword_ in call.keywords:
        if keyword_.arg is not None and keyword_.arg not in form.keywords and not form.any_keyword:
            close = get_close_matches(keyword_.arg, sorted(form.keywords), n=1)
            fix = f"Write `{close[0]}=`." if close else _named(form)
            return keyword_.value if not hasattr(keyword_, "lineno") else keyword_, f"{name}() has no argument `{keyword_.arg}`.", fix
    if spread or open_ended:
        return None
    missing = [p for i, p in enumerate(form.positional[: form.needed]) if i >= len(call.args) and p not in given]
    missing += sorted(form.required - given)
    return (call, f"{name}() needs `{missing[0]}`.", f"Add `{missing[0]}`.") if missing else None


def _most(count: int) -> str:
    return "no argument" if count == 0 else f"at most {count} argument{'s' if count > 1 else ''}"


def _named(form: Form) -> str:
    names = [*form.positional, *sorted(form.keywords - set(form.positional))]
    return f"It takes {', '.join(names)}." if names else "Leave it out."


# ---- literal values ------------------------------------------------------------------------------


def _values(call: ast.Call, scope: Scope, verb: Verb, context: Context) -> Iterator[Finding]:
    name = verb.name.rpartition(".")[2]
    for given in call.keywords:
        if given.arg is None:
            continue
        value = context.names.constant(given.value, scope)
        if value is None or value is ...:
            continue
        complaint = _complaint(name, given.arg, value)
        if complaint is not None:
            yield context.finding("CPZ008", given.value, scope, f"{name}({given.arg}={value!r}) is refused.", complaint)
    yield from _special(name, call, scope, context)


def _complaint(verb: str, argument: str, value: object) -> str | None:
    words = _WORDS.get((verb, argument))
    if words is not None:
        return None if value in words or (argument == "kind" and not isinstance(value, str)) else f"Write {', '.join(words[:-1])} or {words[-1]}."
    least = _COUNTS.get((verb, argument))
    if least is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        return f"Write a whole number, {least} or more."
    if argument in _DURATIONS:
        return _said(seconds, value)
    if (verb, argument) == ("budget", "usd"):
        return _said(usd, value)
    return None


def _said(parse: Callable[[str], object], value: object) -> str | None:
    try:
        parse(value)  # type: ignore[arg-type]
    except UsageError as error:
        return f"{error.message[:1].upper()}{error.message[1:]}."
    return None


def _special(name: str, call: ast.Call, scope: Scope, context: Context) -> Iterator[Finding]:
    kind = context.names.constant(keyword(call, "kind"), scope)
    if name == "ask" and kind == "choice" and keyword(call, "options") is None and not any(k.arg is None for k in call.keywords):
        yield context.finding("CPZ008", call, scope, "ask(kind='choice') has no options.", "Add `options=[...]`.")
    if name == "sleep" and call.args:
        value = context.names.constant(call.args[0], scope)
        said = None if value is ... or value == 0 else _said(seconds, value)
        if said is not None:
            yield context.finding("CPZ008", call.args[0], scope, f"sleep({value!r}) is refused.", said)
    if name in ("race",) and not call.args:
        yield context.finding("CPZ008", call, scope, "race() has nothing to wait for.", "Give it handles or coroutines.")
    if name == "scope" and call.args:
        value = context.names.constant(call.args[0], scope)
        if isinstance(value, str) and not all(part and not part.startswith("~") for part in value.split("/")):
            yield context.finding("CPZ008", call.args[0], scope, f"scope({value!r}) is refused.", "Give it a name: text that is not empty.")


def _scopes(context: Context) -> Iterator[Finding]:
    for call, scope in context.calls():
        if context.dotted(call, scope) != "capataz.scope":
            continue
        parent = context.project.parents.get(call)
        block = context.project.parents.get(parent) if isinstance(parent, ast.withitem) else None
        if isinstance(block, ast.With) and (keyword(call, "budget") is not None or keyword(call, "within") is not None):
            yield context.finding(
                "CPZ022", call, scope, "A scope with a budget or a deadline is entered by a plain `with`.", "Write `async with scope(...):`."
            )
        elif isinstance(parent, (ast.Expr, ast.Await)):
            yield context.finding("CPZ022", call, scope, "The scope is not entered, so it names nothing.", "Write `async with scope(...):`.")
