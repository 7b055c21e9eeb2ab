"""Group commit: one transaction at a time, carrying everything that was handed in while the last one was under way.

Order is kept: what was handed in first is durable no later than what follows, so a completion may be handed in without
waiting (``soon``) as long as whatever depends on it waits for its own, later, part (``durable``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from capataz.contracts.events import TYPES
from capataz.contracts.faults import Faults
from capataz.contracts.journal import Batch, Journal, Lease, NewEvent, RunUpdate


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a batch whose events have no numbers yet: ``events`` holds (type, effect, data)."""

    batch: Batch = field(default_factory=Batch)
    events: tuple[tuple[str, str | None, dict[str, Any]], ...] = ()


class Committer:
    """The one writer of a run. After a failed commit every later call raises the same error: the kernel must stop."""

    def __init__(self, journal: Journal, lease: Lease, *, last_event: int, now: Callable[[], float], faults: Faults) -> None:
        self.lease = lease
        self._journal = journal
        self._seq = last_event
        self._now = now
        self._faults = faults
        self._parts: list[Part] = []
        self._done: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self.listeners: list[Callable[[NewEvent], None]] = []

    def soon(self, part: Part) -> asyncio.Future[None]:
        """Hands in a part; the future ends when it is durable."""
        if self._broken is not None:
            raise self._broken
        self._parts.append(part)
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            self._done.add_done_callback(_retrieve)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._pump())
        return self._done

    async def durable(self, part: Part) -> None:
        """Hands in a part and waits until it is durable. Being cancelled does not take the part back."""
        await asyncio.shield(self.soon(part))

    async def flush(self) -> None:
        while self._done is not None or (self._task is not None and not self._task.done()):
            if self._task is not None:
                await asyncio.shield(self._task)
        if self._broken is not None:
            raise self._broken

    async def _pump(self) -> None:
        while self._done is not None:
            await asyncio.sleep(0)  # let everybody who is ready now join this commit
            done, self._done = self._done, None
            parts, self._parts = self._parts, []
            batch = self._assemble(parts)
            if self._broken is not None:
                self._fail(self._broken, done)
                return
            try:
                self._faults.reach("journal.commit.before")
                await self._journal.commit(self.lease, batch)
                self._faults.reach("journal.commit.after")
            except BaseException as error:
                self._fail(error, done)
                return
            done.set_result(None)
            for event in batch.events:
                for listener in self.listeners:
                    listener(event)

    def poison(self, error: BaseException) -> None:
        """From now on nothing is written: every call raises ``error``."""
        if self._broken is None:
            self._broken = error

    def _fail(self, error: BaseException, done: asyncio.Future[None]) -> None:
        self._broken = error
        done.set_exception(error)
        if self._done is not None:
            self._done.set_exception(error)
            self._done = None

    def _assemble(self, parts: list[Part]) -> Batch:
        merged: dict[str, Any] = {}
        for name in _TUPLES:
            merged[name] = tuple(item for part in parts for item in getattr(part.batch, name))
        events = list(merged["events"])
        for part in parts:
            for type, effect, data in part.events:
                events.append(self._number(type, effect, data))
        merged["events"] = tuple(events)
        return Batch(**merged, run=_merge_updates([part.batch.run for part in parts if part.batch.run is not None]))

    def _number(self, type: str, effect: str | None, data: dict[str, Any]) -> NewEvent:
        if type not in TYPES:
            raise ValueError(f"{type} is no event type")
        self._seq += 1
        return NewEvent(seq=self._seq, type=type, at=self._now(), effect=effect, data=data)


_TUPLES = [f.name for f in fields(Batch) if f.name != "run"]


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _merge_updates(updates: list[RunUpdate]) -> RunUpdate | None:
    if not updates:
        return None
    merged = updates[0]
    for update in updates[1:]:
        later = {f.name: value for f in fields(RunUpdate) if f.name != "clear" and (value := getattr(update, f.name)) is not None}
        kept = tuple(name for name in merged.clear if name not in later)
        merged = replace(merged, **later, clear=(*kept, *update.clear))
    return merged
