"""References checked: what really stands at the places that an agent names."""

from __future__ import annotations

from capataz.contracts.coding import Cited, Reference
from capataz.contracts.workspace import RunRepository
from capataz.evidence.text import readable

_LINES = 60
_LINE = 400


async def cited(run: RunRepository, tree: str, references: list[Reference]) -> list[Cited]:
    """In order; at most 60 lines of each place, at most 400 characters of a line."""
    files = {e.path for e in await run.entries(tree) if e.mode.startswith("100")}
    texts: dict[str, list[str] | None] = {}
    for path in {r.path for r in references}:
        data = await run.read(tree, path.encode("utf-8", "surrogatepass")) if path.encode("utf-8", "surrogatepass") in files else None
        texts[path] = None if data is None else readable(data)[0].splitlines()
    return [Cited(reference=r, text=_text(texts[r.path], r)) for r in references]


def _text(lines: list[str] | None, place: Reference) -> str | None:
    last = place.line if place.end_line is None else place.end_line
    if lines is None or not 1 <= place.line <= last <= len(lines):
        return None
    return "\n".join(line[:_LINE] for line in lines[place.line - 1 : min(last, place.line - 1 + _LINES)])
