"""Finding programs and their source closure, without running any of their code.

The closure is the program's module and what it imports outside site-packages and the standard library; of ``capataz`` only
``capataz.programs``. A run pins it: keys are paths (``pkg/mod.py``), values source text.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import keyword
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from capataz.contracts.canonical import digest
from capataz.contracts.errors import NotFound, ProgramLoadError
from capataz.vm.importer import ENTRY, PREFIX, spelled

BUNDLED = "capataz.programs"
_NAME = re.compile(r"^[A-Za-z_][\w.]*$")


@dataclass(frozen=True, slots=True)
class Source:
    """A program found. ``ref``: ``module:name``; ``files``: its closure, with ``ref`` itself under ``"@entry"``; ``trees``: its
    modules parsed, by path, for whoever reads on."""

    ref: str
    files: dict[str, str]
    trees: Mapping[str, ast.Module] = field(default_factory=dict[str, ast.Module], compare=False, repr=False)

    @property
    def digest(self) -> str:
        return digest(self.files)


def find(program: str, *, cwd: Path | None = None) -> Source:
    """Finds ``file.py[:name]``, ``pkg.mod[:name]``, an entry point of ``capataz.programs``, or a bundled program's name.

    ``name`` may be left out where the module has one program, or one of its own name. Reads files, runs nothing. Raises
    ``NotFound`` when there is no such program, ``ProgramLoadError`` (``file:line``) when its source cannot be used.
    """
    here = cwd or Path.cwd()
    place, _, name = _split(program)
    if place.endswith(".py") or os.sep in place:
        return _from_file(here / place, name)
    if not _NAME.match(place):
        raise NotFound(f"{program!r} names no program; write file.py:name, pkg.mod:name or a bundled program's name")
    return _from_module(program, place, name, here)


def _split(program: str) -> tuple[str, str, str]:
    """The last colon parts module and name, unless it belongs to the path."""
    place, colon, name = program.rpartition(":")
    if not colon or os.sep in name or name.endswith(".py"):
        return program, "", ""
    return place, colon, name


def _from_file(path: Path, name: str) -> Source:
    try:
        path = path.resolve(strict=True)
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(f"{path}: no such program file ({error.strerror or error})") from error
    module = file_module(path.stem, path.parent)
    closure = _Closure([str(path.parent)])
    tree = closure.add(module, path.name, data, package=False, shown=path.name)
    closure.follow()
    return closure.source(module, _program_name(tree, name, module, path.name))


def file_module(stem: str, folder: Path) -> str:
    """A module name for a program file: its stem, unless that is no name or would hide an installed module."""
    module = spelled(stem)
    taken = keyword.iskeyword(module) or module in sys.stdlib_module_names or _hides(module, folder)
    sibling = module != stem and (folder / f"{module}.py").exists()
    return f"{PREFIX}{module}" if taken or sibling or not module.isidentifier() else module


def _hides(module: str, folder: Path) -> bool:
    if module == "capataz":
        return True
    found = _spec(module, None)
    origin = found.origin if found is not None else None
    return origin is not None and Path(origin).parent != folder


def _from_module(program: str, place: str, name: str, here: Path) -> Source:
    if not name:
        bundled = f"{BUNDLED}.{place}"
        if "." not in place and _spec_of(bundled, []) is not None:
            return _located(bundled, place, [])
        entry = _entry_point(place)
        if entry is not None:
            place, _, name = entry.partition(":")
    roots = [str(here)]
    if _spec_of(place, roots) is None:
        raise NotFound(f"no program {program!r}: neither a bundled one, an installed one, nor a module that can be found from {here}")
    return _located(place, name, roots)


def _located(module: str, name: str, roots: list[str]) -> Source:
    closure = _Closure(roots)
    tree = closure.load(module)
    if tree is None:
        raise ProgramLoadError(f"{module} is no Python source file")
    closure.follow()
    return closure.source(module, _program_name(tree, name, module.rpartition(".")[2], module))


def _entry_point(name: str) -> str | None:
    from importlib.metadata import entry_points

    return next((point.value for point in entry_points(group="capataz.programs", name=name)), None)


def list_programs() -> dict[str, str]:
    """Names that ``find`` knows without a path: bundled ones and entry points, each with what it stands for."""
    from importlib.metadata import entry_points

    found = {point.name: point.value for point in entry_points(group="capataz.programs")}
    for path in sorted((Path(__file__).parents[1] / "programs").glob("[a-z]*.py")):
        names = _programs(ast.parse(path.read_bytes()))
        if path.stem in names:
            found[path.stem] = f"{BUNDLED}.{path.stem}:{path.stem}"
    return dict(sorted(found.items()))


# ---- which function is the program --------------------------------------------------------------


def _programs(tree: ast.Module) -> list[str]:
    functions = (ast.AsyncFunctionDef, ast.FunctionDef)
    return [n.name for n in tree.body if isinstance(n, functions) and any(map(_marks, n.decorator_list))]


def _marks(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return (decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", None)) == "program"


def _program_name(tree: ast.Module, name: str, own: str, shown: str) -> str:
    if name:
        return name
    names = _programs(tree)
    if not names:
        raise ProgramLoadError(f"{shown}: no @program in it; put @program above an async function")
    if len(names) > 1 and own not in names:
        raise ProgramLoadError(f"{shown}: it has several programs; name one: {', '.join(f'{shown}:{n}' for n in names)}")
    return own if own in names else names[0]


# ---- modules on disk ----------------------------------------------------------------------------


def _spec(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """A module's spec, without importing its parents."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except (ImportError, AttributeError, ValueError):
            continue
        except KeyError:  # a namespace package whose parent is not imported
            spec = _namespace(name, path or [])
        if spec is not None:
            return spec
    return None


def _spec_of(module: str, roots: list[str]) -> importlib.machinery.ModuleSpec | None:
    """The spec of a dotted module, looked for in ``roots`` first."""
    spec: importlib.machinery.ModuleSpec | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if count == 1:
            spec = importlib.machinery.PathFinder.find_spec(name, roots) if roots else None
            spec = spec if spec is not None and _has_source(spec) else _spec(name, None)
        else:
            inside = _folders(spec)
            spec = _spec(name, inside) if inside is not None else None
        if spec is None:
            return None
    return spec


def _folders(spec: importlib.machinery.ModuleSpec | None) -> list[str] | None:
    """Where a package's modules lie. A namespace's list would look for its parent among the imported modules."""
    inside = spec.submodule_search_locations if spec is not None else None
    return None if inside is None else list(getattr(inside, "_path", inside))


def _namespace(name: str, path: list[str]) -> importlib.machinery.ModuleSpec | None:
    folders = [str(found) for folder in path if (found := Path(folder, name.rpartition(".")[2])).is_dir()]
    if not folders:
        return None
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


def _has_source(spec: importlib.machinery.ModuleSpec) -> bool:
    return spec.origin is not None or bool(_folders(spec))


def _installed_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    return tuple(f"{os.path.realpath(path)}{os.sep}" for path in found)


def _is_ours(module: str) -> bool:
    return module == BUNDLED or module.startswith(f"{BUNDLED}.")


class _Closure:
    """Collects modules, starting from the program's own."""

    def __init__(self, roots: list[str]) -> None:
        self._roots = roots
        self._installed = _installed_roots()
        self._files: dict[str, str] = {}
        self._trees: dict[str, ast.Module] = {}
        self._done: set[str] = set()
        self._todo: list[str] = []

    def source(self, module: str, name: str) -> Source:
        ref = f"{module}:{name}"
        return Source(ref, {ENTRY: ref, **dict(sorted(self._files.items()))}, self._trees)

    def follow(self) -> None:
        """Adds what is imported, and what that imports."""
        while self._todo:
            module = self._todo.pop()
            if module not in self._done and self._wanted(module):
                self.load(module, only_own=True)
        if any(path.startswith("capataz/programs/") for path in self._files):
            self._add_prompts()

    def _wanted(self, module: str) -> bool:
        top = module.partition(".")[0]
        return top not in sys.stdlib_module_names and (top != "capataz" or _is_ours(module))

    def load(self, module: str, *, only_own: bool = False) -> ast.Module | None:
        """Adds a module and its parent packages. ``only_own``: nothing that is installed beside the interpreter."""
        self._done.add(module)
        spec = _spec_of(module, self._roots)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        own = _is_ours(module) or not os.path.realpath(spec.origin).startswith(self._installed)
        if only_own and not own:
            return None
        package = spec.submodule_search_locations is not None
        path = module.replace(".", "/") + ("/__init__.py" if package else ".py")
        if own:
            self._todo.extend(_parents(module))
        return self.add(module, path, Path(spec.origin).read_bytes(), package=package, shown=path)

    def add(self, module: str, path: str, data: bytes, *, package: bool, shown: str) -> ast.Module:
        self._done.add(module)
        text, tree = _parse(data, shown)
        self._files[path] = text
        self._trees[path] = tree
        self._todo.extend(sorted(_imports(tree, module, package), reverse=True))
        return tree

    def _add_prompts(self) -> None:
        for path in sorted((Path(__file__).parents[1] / "programs" / "prompts").glob("*.md")):
            self._files[f"capataz/programs/prompts/{path.name}"] = path.read_text(encoding="utf-8")


def _parse(data: bytes, shown: str) -> tuple[str, ast.Module]:
    try:
        text = importlib.util.decode_source(data)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ProgramLoadError(f"{shown}: it is no Python source text: {error}") from error
    try:
        return text, ast.parse(text, shown)
    except SyntaxError as error:
        raise ProgramLoadError(f"{shown}:{error.lineno or 1}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramLoadError(f"{shown}: it cannot be parsed: {error}") from error


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _imports(tree: ast.Module, module: str, package: bool) -> set[str]:
    """Names of modules that the source imports anywhere, functions included; ``from a import b`` may mean ``a.b``."""
    found: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = base_of_import(node, module, package)
            if base is not None:
                found.add(base)
                found.update(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    return {name for full in found for name in (*_parents(full), full)}


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, those inside others included. Expressions, which are most of a tree, hold none."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, name, None)
            if isinstance(inside, list):
                todo += inside  # pyright: ignore[reportUnknownArgumentType]


def base_of_import(node: ast.ImportFrom, module: str, package: bool) -> str | None:
    """The module that a `from` import names; None above the top."""
    if node.level == 0:
        return node.module
    parts = module.split(".")
    keep = len(parts) - node.level + (1 if package else 0)
    if keep < 1:
        return None
    return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def entry(ref: str, files: Mapping[str, str] | None) -> tuple[str, str]:
    """Module and name of what a ``start`` frame asks for: ``module:name``, else the closure's own entry."""
    module, colon, name = ref.rpartition(":")
    named = bool(colon) and _NAME.match(module) is not None and not module.endswith(".py")
    if not named and files is not None and ENTRY in files:
        module, _, name = files[ENTRY].rpartition(":")
    return module, name
