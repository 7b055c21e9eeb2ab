"""Where a run's chance and clock begin: its own, or those of the run that it was forked from."""

from __future__ import annotations

import hashlib
from typing import Any

from capataz.contracts.journal import RunRecord


def origin(record: RunRecord) -> tuple[str, float]:
    """The seed and the recorded time at the program's start: the same in a fork, so that its calls keep their keys."""
    options: dict[str, Any] = record.options or {}
    given = options.get("origin") or {}
    seed = given.get("seed") or hashlib.sha256(record.run_id.encode()).hexdigest()
    return str(seed), float(given.get("now") or record.created_at)
