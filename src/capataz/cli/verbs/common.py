"""What verbs share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capataz.contracts.errors import NotFound
from capataz.contracts.ids import is_run_id
from capataz.contracts.journal import Journal, RunRecord

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id (capataz ps lists them).")]


def examples(*lines: str) -> str:
    """An epilog that keeps its lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


async def find_run(journal: Journal, run_id: str) -> RunRecord:
    """Raises ``NotFound`` that says where ids are listed."""
    if not is_run_id(run_id):
        raise NotFound(f"{run_id!r} is no run id; `capataz ps` lists them")
    try:
        return await journal.get_run(run_id)
    except NotFound:
        raise NotFound(f"there is no run {run_id}; `capataz ps` lists them") from None


def iso(seconds: float | None) -> str | None:
    """Seconds since the epoch as UTC text."""
    from datetime import UTC, datetime

    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def table(rows: list[list[Any]], head: list[str]) -> list[str]:
    """Left-aligned columns of cleaned text."""
    from capataz.cli.output import clean

    cells = [head, *([clean(cell if cell is not None else "-") for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
