"""The rows as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.figures import Row, short

HEAD = ("measure", "Capataz: median (min..max)", "against", "median (min..max)", "judged", "target", "")


def cells(row: Row) -> tuple[str, ...]:
    judged = "" if row.judged is None else f"{short(row.judged)} {row.judged_unit}"
    theirs = "not installed" if row.missing is not None else str(row.theirs or "")
    return (row.name, str(row.ours), row.against, theirs, judged, row.target, row.mark)


def markdown(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    lines = [f"{key}: {value}  " for key, value in machine.items()]
    lines += ["", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    notes = [f"* {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, "", *notes, ""])


def text(rows: Sequence[Row]) -> str:
    """Aligned columns for a terminal."""
    table = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table)
