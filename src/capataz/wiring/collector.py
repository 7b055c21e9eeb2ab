"""How often Python looks for cycles of dead objects in a worker."""

from __future__ import annotations

import gc

NEW_OBJECTS = 50_000


def collect_rarely() -> None:
    """A worker with a thousand agents holds many objects for a while, and Python's default walks over them at every few hundred new
    ones: a fifth of its time. Cycles are rare, so it looks rarely. Limits that somebody else has set stay."""
    first, *others = gc.get_threshold()
    if 0 < first < 5_000:
        gc.set_threshold(NEW_OBJECTS, *others)
