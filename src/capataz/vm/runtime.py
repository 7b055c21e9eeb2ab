"""A program's side of the pipe: it numbers requests, remembers who waits for which, and takes deliveries in order.

One runtime a process. It knows no sockets: ``process`` moves what it collects, so tests may drive it directly.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import ImpureProgram, ProgramError, error_from_json
from capataz.vm.sites import call_site

if TYPE_CHECKING:
    from capataz.vm.handle import Handle

Item = dict[str, Any]

scope_path: ContextVar[str] = ContextVar("capataz_scope", default="")
"""The present scope, inherited by tasks."""

class Lane:
    """Requests that are numbered together: a program's own, or those of the present epoch of one of its loops.

    An epoch's numbers begin anew, so that a process that starts with the present epoch counts like the one that came to it.
    ``no``: the number of the loop's request; None for the program's own lane.
    """

    __slots__ = ("above", "loops", "next", "no")

    def __init__(self, no: int | None, above: Lane | None) -> None:
        self.no = no
        self.above = above
        self.next = 0
        self.loops: Counter[str] = Counter()

    def within(self, other: Lane) -> bool:
        """Whether this is ``other`` or a lane of a loop inside of it."""
        lane: Lane | None = self
        while lane is not None and lane is not other:
            lane = lane.above
        return lane is not None

    def new_loop(self, scope: str) -> int:
        """The ordinal of a loop among those that this lane starts in a scope."""
        self.loops[scope] += 1
        return self.loops[scope] - 1


present_lane: ContextVar[Lane | None] = ContextVar("capataz_lane", default=None)
"""The lane of the present task, inherited by tasks; None: the program's own."""

_order = itertools.count(1)


class OrderedFuture(asyncio.Future[Any]):
    """A future that hashes by its creation number, not its address: sets of it iterate alike in every process."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._order = next(_order)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._order


class Effect(OrderedFuture):
    """What a request will give. Cancelling it (as a task does that awaits it) cancels the request."""

    def __init__(self, runtime: Runtime, no: int) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.no = no
        self.lane = runtime.lane()
        self._runtime = runtime

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._runtime.withdraw(self.no, msg if isinstance(msg, str) else "cancelled by the program")
        return cancelled

    def take(self, item: Item) -> None:
        if self.done():
            return
        if "error" in item:
            self.set_exception(error_from_json(item["error"]))
        else:
            self.set_result(item.get("ok"))


class Runtime:
    """``now`` is the recorded time in seconds since the Unix epoch; ``started`` what it was at the start."""

    def __init__(self, *, seed: JsonValue, now: float, scope: str) -> None:
        self.seed = str(seed)
        self.now = now
        self.started = now
        self.scope = scope
        self.delivered = 0
        self.closed = False  # while a callback runs: it is not journaled, so it must ask for nothing
        self.handles: list[Handle[Any]] = []
        self.locks: dict[tuple[str, str], asyncio.Lock] = {}  # of states: writes of one program take turns
        self.callbacks: dict[int, Callable[..., Any]] = {}
        self.steps: dict[int, Callable[[], Any]] = {}
        self._next_no = 0
        self._next_callback = 0
        self._own_lane = Lane(None, None)
        self._callbacks_of: dict[Lane, list[int]] = {}
        self._requests: list[dict[str, Any]] = []
        self._cancels: list[list[Any]] = []
        self._waiting: dict[int, tuple[Callable[[Item], None], Lane]] = {}

    def lane(self) -> Lane:
        """The present task's."""
        return present_lane.get() or self._own_lane

    # ---- asking --------------------------------------------------------------------------------

    def request(
        self, kind: str, *, name: str = "", input: JsonValue = None, args: JsonValue = None, site: str | None = None
    ) -> Effect:
        """Asks for an effect; the future gives what is delivered for it, as JSON."""
        effect = Effect(self, self._next_no)
        self.ask(kind, effect.take, name=name, input=input, args=args, site=site)
        return effect

    def ask(
        self,
        kind: str,
        take: Callable[[Item], None],
        *,
        name: str = "",
        input: JsonValue = None,
        args: JsonValue = None,
        site: str | None = None,
    ) -> int:
        """Asks for an effect whose delivery calls ``take``; returns its number."""
        if self.closed:
            raise ImpureProgram(f"{call_site(2)}: a check or selector must be pure: ask for effects before or after run()")
        no = self._next_no
        self._next_no += 1
        lane = self.lane()
        self._waiting[no] = (take, lane)
        n, lane.next = lane.next, lane.next + 1
        place = {"n": n} if lane.no is None else {"n": n, "lane": lane.no}
        self._requests.append(
            {
                "no": no,
                **place,
                "after": self.delivered,
                "kind": kind,
                "scope": scope_path.get(),
                "name": name,
                "input": {} if input is None else input,
                "args": {} if args is None else args,
                "site": call_site(2) if site is None else site,
            }
        )
        return no

    def register_callback(self, callback: Callable[..., Any]) -> int:
        """A function that the kernel may call; the number is the same in every process."""
        self._next_callback = number = self._next_callback + 1
        self.callbacks[number] = callback
        self._callbacks_of.setdefault(self.lane(), []).append(number)
        return number

    def withdraw(self, no: int, reason: str) -> None:
        """Cancels a request. What may still be delivered for it is ignored."""
        if self._waiting.pop(no, None) is not None:
            self.steps.pop(no, None)
            self._cancels.append([no, reason, self.delivered])

    def end_lane(self, lane: Lane, reason: str) -> None:
        """Withdraws what an epoch still asks for and forgets what belonged to it."""
        for handle in self.handles:
            if handle.effect.lane.within(lane):
                handle.abandon(reason)
        self.handles = [handle for handle in self.handles if not handle.effect.lane.within(lane)]
        for no in [no for no, (_, owner) in self._waiting.items() if owner.within(lane)]:
            self.withdraw(no, reason)
        for owner in [owner for owner in self._callbacks_of if owner.within(lane)]:
            for number in self._callbacks_of.pop(owner):
                del self.callbacks[number]

    # ---- moving --------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether anything can still be delivered."""
        return bool(self._waiting)

    def take_batch(self) -> dict[str, Any]:
        """What was asked since the last batch."""
        batch = {"requests": self._requests, "cancels": self._cancels, "seen": self.delivered}
        self._requests, self._cancels = [], []
        return batch

    def deliver(self, item: Item) -> None:
        """Hands one completion to whoever waits for it. Time never goes back."""
        self.delivered += 1
        self.now = max(self.now, float(item.get("now", self.now)))
        waiting = self._waiting.pop(item["no"], None)
        self.steps.pop(item["no"], None)
        if waiting is not None:
            waiting[0](item)


_current: Runtime | None = None


def set_current(runtime: Runtime | None) -> None:
    global _current
    _current = runtime


def current() -> Runtime:
    """The runtime of the program that runs in this process. Raises ``ProgramError`` elsewhere."""
    if _current is None:
        raise ProgramError("effects work only inside a running program; start it with `capataz run FILE.py:NAME`")
    return _current
