"""A program's side of the pipe: it numbers requests, remembers who waits for which, and takes deliveries in order.

One runtime a process. It knows no sockets: ``process`` moves what it collects, so tests may drive it directly.
"""

from __future__ import annotations

import asyncio
import itertools
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
        self._requests: list[dict[str, Any]] = []
        self._cancels: list[list[Any]] = []
        self._waiting: dict[int, Callable[[Item], None]] = {}

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
        self._waiting[no] = take
        self._requests.append(
            {
                "no": no,
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
        number = len(self.callbacks) + 1
        self.callbacks[number] = callback
        return number

    def withdraw(self, no: int, reason: str) -> None:
        """Cancels a request. What may still be delivered for it is ignored."""
        if self._waiting.pop(no, None) is not None:
            self.steps.pop(no, None)
            self._cancels.append([no, reason, self.delivered])

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
        take = self._waiting.pop(item["no"], None)
        self.steps.pop(item["no"], None)
        if take is not None:
            take(item)


_current: Runtime | None = None


def set_current(runtime: Runtime | None) -> None:
    global _current
    _current = runtime


def current() -> Runtime:
    """The runtime of the program that runs in this process. Raises ``ProgramError`` elsewhere."""
    if _current is None:
        raise ProgramError("effects work only inside a running program; start it with `capataz run FILE.py:NAME`")
    return _current
