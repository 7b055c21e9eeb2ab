"""``capataz gc``: what finished or killed runs left on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capataz.contracts.errors import NotFound
from capataz.contracts.journal import FINAL_STATES

if TYPE_CHECKING:
    from capataz.wiring.parts import Parts

KEEP_CHECKOUT_S = 7 * 86400.0
KEEP_SCRATCH_S = 3600.0


async def collect(parts: Parts) -> dict[str, Any]:
    """Removes folders of runs that are over or unknown, and checkouts that nothing used for a week. Freed sizes in bytes."""
    removed: list[str] = []
    freed = kept = 0
    async for item in parts.repositories.leftovers():
        if not await _useless(parts, item):
            kept += 1
            continue
        freed += _size(Path(item["path"]))
        await parts.repositories.remove_leftover(item)
        removed.append(item["path"])
    return {"removed": removed, "freed_bytes": freed, "kept": kept}


async def _useless(parts: Parts, item: dict[str, Any]) -> bool:
    age = parts.clock.now() - item["modified"]
    match item["kind"]:
        case "run" | "workspace":
            return await _over(parts, item["run_id"]) if age > 60 else False
        case "checkout":
            return not item["used"] and age > KEEP_CHECKOUT_S
        case _:
            return age > KEEP_SCRATCH_S


async def _over(parts: Parts, run_id: str) -> bool:
    try:
        return (await parts.journal.get_run(run_id)).state in FINAL_STATES
    except NotFound:
        return True


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total
