"""How long a run was running, from its events: waits for people and times without a worker do not count."""

from __future__ import annotations

from collections.abc import Iterable

from capataz.contracts.journal import Journal, NewEvent

Stretch = tuple[float, float]


async def read_stretches(journal: Journal, run_id: str) -> list[Stretch]:
    """From when to when the run was carried on. A worker that was killed counts up to its last event."""
    events: list[NewEvent] = []
    after = 0
    while page := await journal.events(run_id, after=after):
        events += page
        after = page[-1].seq
    return stretches(events)


def stretches(events: Iterable[NewEvent]) -> list[Stretch]:
    found: list[Stretch] = []
    since: float | None = None
    last = 0.0
    for event in events:
        if event.type in ("run.started", "run.resumed"):
            if since is not None:
                found.append((since, last))
            since = event.at
        elif event.type in ("run.parked", "run.ended") and since is not None:
            found.append((since, event.at))
            since = None
        last = event.at
    if since is not None:
        found.append((since, last))
    return found


def running_time(found: Iterable[Stretch], *, since: float, until: float) -> float:
    """Seconds of the stretches between two times."""
    return sum(max(0.0, min(end, until) - max(start, since)) for start, end in found)
