"""The check of a program: its closure found, every family of rules asked, its bound counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.errors import CapatazError, NotFound, ProgramLoadError
from capataz.vm.checker import advice, awaits, children, handles, keys, loops, purity, serial, signals, states, steps, verbs
from capataz.vm.checker.amounts import Bound
from capataz.vm.checker.bound import Counter
from capataz.vm.checker.context import Context, ModelBook
from capataz.vm.checker.finding import Finding, Rule
from capataz.vm.checker.modules import Project, Scope, entry_of
from capataz.vm.checker.surface import surface
from capataz.vm.closure import Source, find

_FAMILIES = (awaits, purity, verbs, serial, states, steps, handles, signals, keys, children, loops, advice)
RULES: Mapping[str, Rule] = dict(sorted((code, rule) for family in _FAMILIES for code, rule in family.RULES.items()))
"""All rules by code, each with its text, an example that breaks it and one that keeps it."""

_PLAIN_FAMILIES = (awaits, purity, verbs, serial, states, steps, handles, signals, keys, advice)
ALL = "*"
_NESTING = 3
_LEVELS = 20_000


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found. ``bounds``: one for each program that was asked for."""

    program: str
    findings: tuple[Finding, ...]
    bounds: tuple[Bound, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "warning")

    @property
    def bound(self) -> Bound:
        """The most of all programs that were asked for."""
        found = self.bounds[0]
        for other in self.bounds[1:]:
            found = Bound(found.program, found.use.most(other.use))
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "program": self.program, "ok": not self.errors, "errors": [f.to_json() for f in self.errors],
            "warnings": [f.to_json() for f in self.warnings], "bound": self.bound.to_json(),
            "bounds": [bound.to_json() for bound in self.bounds],
        }  # fmt: skip


def check(program: str, *, cwd: Path | None = None, models: ModelBook | None = None) -> Report:
    """Checks ``file.py[:name]``, ``pkg.mod[:name]``, an entry point or a bundled program. Without a name: all programs of the module.

    Reads files, runs nothing. Raises ``NotFound`` and ``ProgramLoadError`` where there is no program or no Python source.
    """
    here = cwd or Path.cwd()
    with _deep(program):
        return _check(program, _find(program, here), here, models, 0)


def check_source(source: Source, program: str, *, cwd: Path | None = None, models: ModelBook | None = None) -> Report:
    """Checks a closure that was found already. ``program``: what it was found by."""
    with _deep(program):
        return _check(program, source, cwd or Path.cwd(), models, 0)


@contextmanager
def _deep(program: str) -> Iterator[None]:
    """Room for deeply nested source, as generated code has: a sum of a thousand terms is a thousand levels."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _LEVELS))
    try:
        yield
    except RecursionError:
        raise ProgramLoadError(f"{program}: its source is nested too deeply to be checked") from None
    finally:
        sys.setrecursionlimit(before)


def _find(program: str, here: Path) -> Source:
    """The closure; a module with several programs is checked whole."""
    if program.endswith(".py"):
        return find(f"{program}:{ALL}", cwd=here)
    try:
        return find(program, cwd=here)
    except ProgramLoadError as error:
        if "several programs" not in error.message:
            raise
        return find(f"{program}:{ALL}", cwd=here)


def _check(program: str, source: Source, here: Path, models: ModelBook | None, depth: int) -> Report:
    context = _context(program, source, here, models)
    module, name = entry_of(source.files)
    asked = [p for p in context.reach.programs() if p.module.name == module and (name == ALL or p.title == name)]
    if not asked:
        raise ProgramLoadError(f"{program}: there is no @program {'in it; put @program above an async function' if name == ALL else name}")
    counter = Counter(context)
    bounds = tuple(counter.bound(p) for p in asked)
    found = {*_findings(context, here, models, depth), *loops.unlimited(context, _outside(context, asked, counter))}
    return Report(program, tuple(sorted(found)), bounds)


def _outside(context: Context, asked: list[Scope], counted: Counter) -> Counter:
    """The count of what is started from outside: programs that others of the module run are covered by their parents' budgets."""
    run = {context.child(call, scope) for call, scope in context.calls()}
    if not counted.repeats or not any(program in run for program in asked):
        return counted
    counter = Counter(context)
    for program in [p for p in asked if p not in run] or asked:
        counter.bound(program)
    return counter


def _findings(context: Context, here: Path, models: ModelBook | None, depth: int) -> Iterator[Finding]:
    for family in _PLAIN_FAMILIES:
        yield from family.check(context)
    yield from loops.endless(context)
    yield from children.check(context, lambda reference: _child(reference, context, here, models, depth))


def _child(reference: str, parent: Context, here: Path, models: ModelBook | None, depth: int) -> Context | CapatazError:
    """A program that ``load`` names, looked for beside the program and in the present folder."""
    missing: CapatazError = NotFound(f"there is no program {reference}")
    for folder in dict.fromkeys([Path(parent.folder), here]):
        try:
            source = find(reference, cwd=folder)
            if depth < _NESTING:
                _refuse_errors(_check(reference, source, folder, models, depth + 1))
        except NotFound as error:
            missing = error
        except CapatazError as error:
            return error
        else:
            return _context(reference, source, folder, models)
    return missing


def _refuse_errors(report: Report) -> None:
    errors = report.errors
    if errors:
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        raise ProgramLoadError(f"it has {count}, the first in line {errors[0].place.line}: {errors[0].message}")


def _context(program: str, source: Source, here: Path, models: ModelBook | None) -> Context:
    path = program if program.endswith(".py") else program.rpartition(":")[0]
    folder = (here / path).parent if path.endswith(".py") else here
    return Context(Project(source.files, trees=source.trees, shown=_shown(source.files, folder, here)), surface(), models, str(folder))


def _shown(files: Mapping[str, str], folder: Path, here: Path) -> dict[str, str]:
    """Paths of the closure as a person finds them from ``here``; a module that lies elsewhere keeps its path in the closure."""
    found: dict[str, str] = {}
    for path in files:
        place = folder / path
        if path.endswith(".py") and place.is_file():
            inside = os.path.relpath(place, here)
            found[path] = str(place) if inside.startswith("..") else inside
    return found
