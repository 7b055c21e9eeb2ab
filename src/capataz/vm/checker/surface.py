"""The authoring surface, read from its source: which verbs there are, what each takes, which must be awaited.

Read, not imported: the checker stands below the surface, and reading takes milliseconds. What is promised and is not
exported yet is in a table, so that a program may be checked before its verb is there.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

_ROOT = Path(__file__).parents[2]
ROOT = "capataz"
CODING = "capataz.coding"
_NOT_EFFECTS = frozenset({"budget", "load", "program", "scope", "state", "tool", "migrate", "mcp_server"})
_SUBMODULES = frozenset({"coding", "contracts", "programs", "testing", "vm", "agents", "sandbox", "service", "wiring", "workspace",
                         "evidence", "store", "cli"})  # fmt: skip
_ANNOUNCED = {
    "state": "def state(name, model, /, *, reach='run', version=1): ...",
    "loop": "async def loop(body, carry=None, *, every=None, until=None): ...",
    "migrate": "def migrate(*args, **kwargs): ...",
    "State": "class State: ...",
}
_AGENT_MORE = ("reads", "writes", "owns", "agent")
_METHODS: dict[str, dict[str, bool]] = {
    "capataz.Handle": {"result": True, "notify": True, "cancel": True, "pause": True, "resume": True, "status": True, "events": False,
                       "done": False},
    "capataz.State": {"get": True, "set": True, "update": True, "transition": True, "until": True, "changes": False},
}  # fmt: skip
"""What is promised; the classes themselves may have more."""
STATE_WRITES = frozenset({"set", "update", "transition"})


@dataclass(frozen=True, slots=True)
class Form:
    """One way to call a verb. ``required``: keyword-only parameters without a default; ``needed``: positional ones."""

    verb: str
    positional: tuple[str, ...]
    positional_only: int
    needed: int
    keywords: frozenset[str]
    required: frozenset[str]
    many: bool                                 # takes any number of positional arguments
    any_keyword: bool


@dataclass(frozen=True, slots=True)
class Verb:
    name: str                                  # as exported: capataz.run
    awaitable: bool
    forms: tuple[Form, ...]


class Surface:
    """``root``: the folder of the package ``capataz``."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root

    @cached_property
    def homes(self) -> dict[str, str]:
        """Exported names and the module of ``capataz.vm`` that each comes from ("" while it is only announced)."""
        tree = ast.parse((self._root / "__init__.py").read_bytes())
        found: dict[str, str] = dict.fromkeys(_ANNOUNCED, "")
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if node.targets[0].id == "_HOMES":
                    found |= ast.literal_eval(node.value)
                elif node.targets[0].id == "__all__":
                    found |= {name: found.get(name, "") for name in ast.literal_eval(node.value)}
        return found

    @cached_property
    def coding(self) -> frozenset[str]:
        tree = self._tree("coding.py")
        names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
        return frozenset(name for name in names if not name.startswith("_"))

    def canonical(self, dotted: str) -> str:
        """``capataz.vm.running.run`` is ``capataz.run``."""
        if not dotted.startswith("capataz.vm."):
            return dotted
        module, _, name = dotted.removeprefix("capataz.vm.").partition(".")
        return f"{ROOT}.{name}" if name and self.homes.get(name) == module else dotted

    def exports(self, dotted: str) -> bool:
        return self.unknown(dotted) is False

    def unknown(self, dotted: str) -> bool | None:
        """Whether a name of ``capataz`` or ``capataz.coding`` is not there; None: not a name of these."""
        parts = dotted.split(".")
        if parts[0] != ROOT or len(parts) < 2:
            return None
        if parts[1] == "coding":
            return None if len(parts) < 3 else parts[2] not in self.coding
        if parts[1].startswith("__"):
            return None
        if len(parts) > 2 and parts[1] in _SUBMODULES:
            return None
        return parts[1] not in self.homes and parts[1] not in _SUBMODULES

    def names(self, module: str) -> list[str]:
        return sorted(self.coding if module == CODING else self.homes)

    def methods(self, dotted: str) -> dict[str, bool]:
        """Methods of a handle or a state, and whether each must be awaited."""
        return _methods(self, dotted)

    def read_methods(self, dotted: str) -> dict[str, bool]:
        found = dict(_METHODS.get(dotted, {}))
        for cls in self._definitions(dotted, dotted.rpartition(".")[2]) if found else ():
            for node in cls.body if isinstance(cls, ast.ClassDef) else ():
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                    streams = any(isinstance(part, ast.Yield) for part in ast.walk(node))
                    found[node.name] = isinstance(node, ast.AsyncFunctionDef) and not streams
        return found

    def is_effect(self, dotted: str | None) -> bool:
        """Whether calling it is an effect: something that the journal records."""
        verb = self.verb(dotted)
        return verb is not None and verb.awaitable

    def verb(self, dotted: str | None) -> Verb | None:
        """The verb of a dotted name; None for anything else."""
        if dotted is None or not dotted.startswith("capataz.") or self.unknown(dotted) is not False:
            return None
        return _verb(self, dotted)

    def read(self, dotted: str) -> Verb | None:
        name = dotted.rpartition(".")[2]
        nodes = self._definitions(dotted, name)
        functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        if not functions:
            return self._class(dotted, name, nodes)
        overloads = [f for f in functions if any(isinstance(d, ast.Name) and d.id == "overload" for d in f.decorator_list)]
        real = functions[-1]
        awaitable = isinstance(real, ast.AsyncFunctionDef) or name in ("run", "spawn")
        forms = tuple(_form(name, f, skip=0) for f in overloads or [real])
        return Verb(dotted, awaitable and name not in _NOT_EFFECTS, _widened(name, forms))

    def _class(self, dotted: str, name: str, nodes: list[ast.stmt]) -> Verb | None:
        """A class that is called like a verb: ``scope``."""
        if name not in _NOT_EFFECTS:
            return None
        inits = [n for c in nodes if isinstance(c, ast.ClassDef) for n in c.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        return Verb(dotted, False, (_form(name, inits[0], skip=1),)) if inits else None

    def _definitions(self, dotted: str, name: str) -> list[ast.stmt]:
        if dotted.startswith(f"{CODING}."):
            tree = self._tree("coding.py")
        elif self.homes.get(name):
            tree = self._tree(f"vm/{self.homes[name]}.py")
        else:
            tree = ast.parse(_ANNOUNCED.get(name, ""))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return [node for node in tree.body if isinstance(node, kinds) and node.name == name]

    def _tree(self, path: str) -> ast.Module:
        return _parsed(self._root / path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def _verb(surface: Surface, dotted: str) -> Verb | None:
    return surface.read(dotted)


@cache
def _methods(surface: Surface, dotted: str) -> dict[str, bool]:
    return surface.read_methods(dotted)


@cache
def surface() -> Surface:
    """The installed surface, read once."""
    return Surface()


def _form(verb: str, node: ast.FunctionDef | ast.AsyncFunctionDef, *, skip: int) -> Form:
    given = node.args
    positional = [*given.posonlyargs, *given.args][skip:]
    keyword_defaults = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    only = max(0, len(given.posonlyargs) - skip)
    return Form(
        verb,
        tuple(arg.arg for arg in positional),
        only,
        max(0, len(positional) - len(given.defaults)),
        frozenset(arg.arg for arg in (*positional[only:], *given.kwonlyargs)),
        frozenset(arg.arg for arg, default in keyword_defaults if default is None),
        given.vararg is not None,
        given.kwarg is not None,
    )


def _widened(name: str, forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """Forms of ``run`` and ``spawn`` with what agents may be given besides."""
    if name not in ("run", "spawn"):
        return forms
    more = frozenset(_AGENT_MORE)
    return tuple(
        Form(f.verb, f.positional, f.positional_only, f.needed, f.keywords | more, f.required, f.many, f.any_keyword)
        if "prompt" in f.keywords else f
        for f in forms
    )  # fmt: skip
