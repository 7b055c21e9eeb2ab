"""check: what can be said of a program before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capataz.cli import options
from capataz.cli.output import emit_json, emit_line
from capataz.cli.verbs.common import Json, examples

if TYPE_CHECKING:
    from capataz.wiring.checking import Report


def add(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "capataz check audit.py                 all programs of a file",
            "capataz check audit.py:deep_audit      one of them",
            "capataz check pkg.flows:nightly        by import, entry point or bundled name",
            "capataz check audit.py --json | jq .bound",
        )
    )(check)


def check(
    program: Annotated[str, typer.Argument(metavar="FILE", help="file.py[:name], pkg.mod[:name], or a program's name (capataz programs lists them).")],
    json: Json = False,
) -> int:
    """Check a program without running it: errors, warnings, and the most agents, turns and money that it can use.

    Exit code 0 without errors, 1 with errors, 64 for a file that cannot be used."""
    from capataz.wiring.checking import check_program

    report = check_program(options.text(program, "FILE"))
    if json:
        emit_json(report.to_json())
    else:
        for line in _lines(report):
            emit_line(line)
    return 1 if report.errors else 0


def _lines(report: Report) -> list[str]:
    lines: list[str] = []
    for finding in report.findings:
        lines += [f"{finding.place}: {finding.severity} {finding.code}: {finding.message}", f"    fix: {finding.fix}"]
    lines.append(f"{report.program}: {_count(report.errors, 'error')}, {_count(report.warnings, 'warning')}")
    several = len(report.bounds) > 1
    return lines + [f"bound{f' of {bound.program}' if several else ''}: {bound}" for bound in report.bounds]


def _count(found: tuple[Any, ...], noun: str) -> str:
    return f"{len(found) or 'no'} {noun}{'' if len(found) == 1 else 's'}"
