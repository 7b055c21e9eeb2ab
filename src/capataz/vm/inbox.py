"""What arrives from outside while a run is held: messages, answers, cancel, pause, topup. Wake-ups are hints; a poll stands behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from capataz.contracts.journal import AskRecord, InboxItem

if TYPE_CHECKING:
    from capataz.vm.effect import Effect
    from capataz.vm.run import Run

POLL_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """A steering message. ``seq``: its inbox number, None when the program sent it (``Handle.notify``)."""

    id: str
    text: str
    seq: int | None


class Inbox:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._wake = asyncio.Event()
        self._tick = asyncio.Event()
        self._last = 0
        self._messages: list[InboxItem] = []               # for the run itself
        self._notes: dict[str, list[Note]] = {}            # agent name or effect key -> steering
        self._taken: list[int] = []
        self._resolved: dict[str, list[InboxItem]] = {}    # effect key -> decisions about an effect in doubt

    def wake(self) -> None:
        self._wake.set()

    async def watch(self) -> None:
        while True:
            await self.read()
            self._tick.set()
            self._tick = asyncio.Event()
            await _wait(self._wake, POLL_S)
            self._wake.clear()

    async def read(self) -> None:
        fresh = [item for item in await self._run.ports.journal.inbox(self._run.run_id) if item.seq > self._last]
        for item in fresh:
            self._last = item.seq
            await self._sort(item)

    async def _sort(self, item: InboxItem) -> None:
        if item.kind == "message" and item.target is None:
            self._messages.append(item)
        elif item.kind == "message":
            self._notes.setdefault(item.target or "", []).append(Note(f"inbox-{item.seq}", _text(item.body), item.seq))
        elif item.kind == "resolve":
            self._resolved.setdefault(item.target or "", []).append(item)
        else:
            if item.kind != "topup":                       # which is marked as done by the commit that raises the limit
                self._taken.append(item.seq)
            await self._run.take([item])

    def tick(self) -> asyncio.Event:
        """Set when something may have changed: at each wake-up and poll, and by ``nudge``."""
        return self._tick

    def nudge(self) -> None:
        """This worker itself changed something that may be waited for."""
        self._tick.set()
        self._tick = asyncio.Event()

    def taken(self) -> tuple[int, ...]:
        """Numbers of the items that were acted on and are not yet marked in the journal."""
        taken, self._taken = tuple(self._taken), []
        return taken

    # ---- steering ------------------------------------------------------------------------------

    def note(self, target: str, id: str, text: str) -> None:
        """A message of the program to one of its agents; the same id counts once."""
        notes = self._notes.setdefault(target, [])
        if all(note.id != id for note in notes):
            notes.append(Note(id, text, None))

    def notes_for(self, effect: Effect, agent: str, known: set[str]) -> list[Note]:
        """Messages for an agent that are not among the ``known`` ids, in order."""
        return [n for target in (effect.key, agent) for n in self._notes.get(target, []) if n.id not in known]

    # ---- waiting -------------------------------------------------------------------------------

    async def until(self, look: Callable[[], T | None], due: float | None) -> T | None:
        """Waits until ``look`` finds something; None when ``due`` is over."""
        while True:
            found = look()
            if found is not None:
                return found
            left = None if due is None else due - self._run.now()
            if left is not None and left <= 0:
                return None
            await _wait(self._tick, left)

    async def answer(self, ask_id: str, due: float | None) -> AskRecord | None:
        while True:
            record = await self._run.ports.journal.get_ask(ask_id)
            if record.answer is not None or record.answered_at is not None:
                return record
            left = None if due is None else due - self._run.now()
            if left is not None and left <= 0:
                return None
            await _wait(self._tick, left)

    def messages(self) -> list[InboxItem]:
        """Takes all messages for the run itself."""
        taken, self._messages = self._messages, []
        return taken

    def message(self) -> InboxItem | None:
        return self._messages.pop(0) if self._messages else None

    def resolution(self, key: str) -> InboxItem | None:
        """The decision about an effect in doubt. It counts once: whoever follows it marks it as done."""
        given = self._resolved.get(key)
        return given[-1] if given else None

    def resolved(self, key: str) -> tuple[int, ...]:
        """The last decision is followed; the numbers of all that were given, for the journal."""
        return tuple(item.seq for item in self._resolved.pop(key, []))


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    """Not ``wait_for``: before Python 3.12 that swallows a cancellation that comes together with the event."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _text(body: Any) -> str:
    return body if isinstance(body, str) else str(body.get("text", "")) if isinstance(body, dict) else str(body)
