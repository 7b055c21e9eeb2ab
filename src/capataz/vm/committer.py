"""Group commit: one transaction at a time, carrying everything that was handed in while the last one was under way.

Order is kept: what was handed in first is durable no later than what follows, so a completion may be handed in without
waiting (``soon``) as long as whatever depends on it waits for its own, later, part (``durable``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from capataz.contracts.events import TYPES
from capataz.contracts.faults import Faults
from capataz.contracts.journal import Batch, Journal, Lease, NewEvent, RunUpdate

NOTHING = Batch()


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a batch whose events have no numbers yet: ``events`` holds (type, effect, data)."""

    batch: Batch = NOTHING
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
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self.listeners: list[Callable[[NewEvent], None]] = []

    def soon(self, *parts: Part) -> None:
        """Hands parts in; they are durable no later than what is handed in after them."""
        if self._broken is not None:
            raise self._broken
        self._parts += parts
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._pump())

    async def durable(self, *parts: Part) -> None:
        """Hands parts in and waits until they are durable. Being cancelled does not take them back."""
        self.soon(*parts)
        # A future for each: shielding a shared one costs more than the rest of this when a thousand wait for one commit.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def started(self) -> None:
        """Lets the commit of what was handed in begin, unless another one is under way."""
        for _ in range(2):  # the pump's first step, and its wait for company
            await asyncio.sleep(0)

    async def flush(self) -> None:
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)
        if self._broken is not None:
            raise self._broken

    async def _pump(self) -> None:
        while self._parts:
            await asyncio.sleep(0)  # let everybody who is ready now join this commit
            parts, self._parts = self._parts, []
            waiting, self._waiting = self._waiting, []
            try:
                batch = self._assemble(parts)
                if self._broken is not None:
                    raise self._broken
                self._faults.reach("journal.commit.before")
                await self._journal.commit(self.lease, batch)
                self._faults.reach("journal.commit.after")
            except BaseException as error:
                self._fail(error, waiting)
                return
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            for event in batch.events:
                self._tell(event)

    def _tell(self, event: NewEvent) -> None:
        """Whoever watches may fail; the run's writer must not."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler({"message": "a listener failed", "exception": error})

    def poison(self, error: BaseException) -> None:
        """From now on nothing is written: every call raises ``error``."""
        if self._broken is None:
            self._broken = error

    def _fail(self, error: BaseException, waiting: list[asyncio.Future[None]]) -> None:
        self._broken = error
        self._parts.clear()
        for future in (*waiting, *self._waiting):
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _assemble(self, parts: list[Part]) -> Batch:
        merged: dict[str, list[Any]] = {}
        for part in parts:
            if part.batch is NOTHING:
                continue
            for name, items in zip(_TUPLES, _items(part.batch), strict=True):
                if items:
                    merged.setdefault(name, []).extend(items)
        events = [*merged.pop("events", ()), *(self._number(*event) for part in parts for event in part.events)]
        run = _merge_updates([part.batch.run for part in parts if part.batch.run is not None])
        return Batch(**{name: tuple(items) for name, items in merged.items()}, events=tuple(events), run=run)

    def _number(self, type: str, effect: str | None, data: dict[str, Any]) -> NewEvent:
        if type not in TYPES:
            raise ValueError(f"{type} is no event type")
        self._seq += 1
        return NewEvent(seq=self._seq, type=type, at=self._now(), effect=effect, data=data)


_TUPLES = [f.name for f in fields(Batch) if f.name != "run"]
_items = attrgetter(*_TUPLES)


def _merge_updates(updates: list[RunUpdate]) -> RunUpdate | None:
    if not updates:
        return None
    merged = updates[0]
    for update in updates[1:]:
        later = {f.name: value for f in fields(RunUpdate) if f.name != "clear" and (value := getattr(update, f.name)) is not None}
        kept = tuple(name for name in merged.clear if name not in later)
        merged = replace(merged, **later, clear=(*kept, *update.clear))
    return merged
