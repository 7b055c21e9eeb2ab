"""The deterministic event loop: a ready queue, nothing else. When it is idle it takes the next delivery.

There is no selector, no thread and no clock: timers are effects, ``time()`` is recorded, and tasks and futures hash by
their creation number, so that sets of them (``TaskGroup``, ``wait``, ``all_tasks``) iterate alike in every process.
Tested by the law "two processes, one order" (tests/vm/test_vm_determinism.py).
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any, NoReturn

from capataz.contracts.errors import ImpureProgram
from capataz.vm.runtime import Lane, OrderedFuture, Runtime, present_lane
from capataz.vm.sites import call_site

_order = itertools.count(1)


class OrderedTask(asyncio.Task[Any]):
    """A task that hashes by its creation number."""

    def __init__(self, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> None:
        self._order = next(_order)  # before the base: it registers the task in a set
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._order


class _Idle:
    """Stands where a loop has its selector: asked to wait, it lets the next delivery in."""

    def __init__(self, idle: Callable[[], None]) -> None:
        self._idle = idle

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout != 0:
            self._idle()
        return ()


class ProgramLoop(asyncio.BaseEventLoop):
    """``idle`` is called when nothing is ready: it delivers one item or ends the process."""

    def __init__(self, runtime: Runtime, idle: Callable[[], None]) -> None:
        super().__init__()
        self._runtime = runtime
        self._selector = _Idle(idle)
        self._timers: dict[int, asyncio.TimerHandle] = {}  # by request number
        self._numbers: dict[int, int] = {}  # id of a live handle -> request number
        self._tasks: dict[OrderedTask, Lane | None] = {}  # with the lane it was started in; in order, and strongly held: no task ends by garbage collection

    # ---- time ----------------------------------------------------------------------------------

    def time(self) -> float:
        """Recorded seconds since the program's start: small numbers keep ``time() + delay`` exact enough for keys."""
        return self._runtime.now - self._runtime.started

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if math.isnan(delay):
            raise ValueError("delay must not be NaN")
        return self._timer(max(float(delay), 0.0), self.time() + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._timer(max(round(when - self.time(), 6), 0.0), when, callback, args, context)

    def _timer(
        self, delay: float, when: float, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if delay == 0:
            self._ready.append(handle)  # type: ignore[attr-defined]
        elif math.isfinite(delay):
            no = self._runtime.ask("sleep", lambda _: self._fire(handle), input={"seconds": delay})
            self._timers[no] = handle
            self._numbers[id(handle)] = no
        return handle

    def _fire(self, handle: asyncio.TimerHandle) -> None:
        self._timers.pop(self._numbers.pop(id(handle)))
        self._ready.append(handle)  # type: ignore[attr-defined]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        no = self._numbers.pop(id(handle), None)
        if no is not None:
            del self._timers[no]
            self._runtime.withdraw(no, "the timer was cancelled")

    # ---- tasks ---------------------------------------------------------------------------------

    def create_task(self, coro: Any, **kwargs: Any) -> Any:
        task = OrderedTask(coro, loop=self, **{key: value for key, value in kwargs.items() if value is not None})
        if not task.done():
            context = kwargs.get("context")
            self._tasks[task] = present_lane.get() if context is None else context.get(present_lane)
            task.add_done_callback(self._forget)
        return task

    def set_task_factory(self, factory: Any) -> None:
        _refuse("a task factory")

    def _forget(self, task: Any) -> None:
        self._tasks.pop(task, None)

    def create_future(self) -> asyncio.Future[Any]:
        return OrderedFuture(loop=self)

    def live_tasks(self, lane: Lane | None = None) -> list[OrderedTask]:
        """Tasks that have not ended, in creation order; with ``lane`` only those that were started in it."""
        if lane is None:
            return list(self._tasks)
        return [task for task, started in self._tasks.items() if started is not None and started.within(lane)]

    # ---- what BaseEventLoop leaves to its children ----------------------------------------------

    def _process_events(self, event_list: Iterable[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # ---- what a program must not do ------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        _refuse("a thread")

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a subprocess")

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a subprocess")

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a name look-up")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a connection")

    async def create_unix_connection(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a connection")

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a server")

    async def create_datagram_endpoint(self, *args: Any, **kwargs: Any) -> Any:
        _refuse("a socket")

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        _refuse("a signal handler")

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        _refuse("a file descriptor")


def _refuse(what: str) -> NoReturn:
    site = call_site(2)
    raise ImpureProgram(
        f"{site}: {what} in a program; put it in a function and call it with `await step(name, fn, ...)`", site=site, verb="step"
    )


def order_asyncio() -> None:
    """Makes the parts of asyncio that iterate sets by address iterate in order. Once, in a program process."""
    original = asyncio.as_completed

    def as_completed(fs: Iterable[Any], **kwargs: Any) -> Any:
        """``asyncio.as_completed`` that starts its awaitables in the order given."""
        if asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
            raise TypeError(f"expect an iterable of futures, not {type(fs).__name__}")
        return original([asyncio.ensure_future(f) for f in dict.fromkeys(fs)], **kwargs)

    asyncio.as_completed = asyncio.tasks.as_completed = as_completed
    gathering: Any = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]  # pyright: ignore
    numbers: dict[str, Any] = {"next": itertools.count(1)}
    initialise = gathering.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self._capataz_order = next(numbers["next"])
        initialise(self, *args, **kwargs)

    gathering.__init__ = init
    gathering.__hash__ = lambda self: self._capataz_order
