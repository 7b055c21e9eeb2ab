"""The check of a program: its closure found, every family of rules asked, its bound counted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.errors import CapatazError, ProgramLoadError
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
    return _check(program, _find(program, here), here, models, 0)


def check_source(source: Source, *, models: ModelBook | None = None, cwd: Path | None = None) -> Report:
    """Checks a closure that was found already."""
    return _check(source.ref, source, cwd or Path.cwd(), models, 0)


def _find(program: str, here: Path) -> Source:
    """The closure; a module with several programs is checked whole."""
    try:
        return find(program, cwd=here)
    except ProgramLoadError:
        whole = find(f"{program}:{ALL}", cwd=here) if "several programs" in _reason(program, here) else None
        if whole is None:
            raise
        return whole


def _reason(program: str, here: Path) -> str:
    try:
        find(program, cwd=here)
    except CapatazError as error:
        return error.message
    return ""


def _check(program: str, source: Source, here: Path, models: ModelBook | None, depth: int) -> Report:
    context = _context(program, source, here, models)
    module, name = entry_of(source.files)
    asked = [p for p in context.reach.programs() if p.module.name == module and (name == ALL or p.title == name)]
    if not asked and name != ALL:
        raise ProgramLoadError(f"{program}: there is no @program {name} in it")
    counter = Counter(context)
    bounds = tuple(counter.bound(p) for p in asked)
    found = {*_findings(context, here, models, depth), *loops.unlimited(context, _counted(context, asked))}
    return Report(program, tuple(sorted(found)), bounds)


def _counted(context: Context, asked: list[Scope]) -> Counter:
    """Counts what is started from outside: programs that others of the module run are covered by their parents' budgets."""
    counter = Counter(context)
    run = {context.child(call, scope) for call, scope in context.calls()}
    for program in [p for p in asked if p not in run] or asked:
        counter.bound(program)
    return counter


def _findings(context: Context, here: Path, models: ModelBook | None, depth: int) -> Iterator[Finding]:
    for family in _PLAIN_FAMILIES:
        yield from family.check(context)
    yield from loops.endless(context)
    yield from children.check(context, lambda reference: _child(reference, context, here, models, depth))


def _child(reference: str, parent: Context, here: Path, models: ModelBook | None, depth: int) -> Context | str:
    """A program that ``load`` names, looked for beside the program and in the present folder."""
    folders = dict.fromkeys([Path(parent.folder), here])
    error = ""
    for folder in folders:
        try:
            source = find(reference, cwd=folder)
        except CapatazError as failed:
            error = error or failed.message
            continue
        if depth < _NESTING:
            errors = _check(reference, source, folder, models, depth + 1).errors
            if errors:
                return f"it has {len(errors)} error{'s' if len(errors) > 1 else ''}, the first in line {errors[0].place.line}: {errors[0].message.rstrip('.')}"
        return _context(reference, source, folder, models)
    return error


def _context(program: str, source: Source, here: Path, models: ModelBook | None) -> Context:
    path = program if program.endswith(".py") else program.rpartition(":")[0]
    folder = (here / path).parent if path.endswith(".py") else here
    return Context(Project(source.files, shown=_shown(source.files, folder, here)), surface(), models, str(folder))


def _shown(files: Mapping[str, str], folder: Path, here: Path) -> dict[str, str]:
    """Paths of the closure as a person finds them from ``here``; a module that lies elsewhere keeps its path in the closure."""
    found: dict[str, str] = {}
    for path in files:
        place = folder / path
        if path.endswith(".py") and place.is_file():
            inside = os.path.relpath(place, here)
            found[path] = str(place) if inside.startswith("..") else inside
    return found
