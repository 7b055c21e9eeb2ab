"""Wake-ups: one LISTEN connection for a process, however many listeners. It reconnects by itself; what fell into a gap is lost,
which a poll makes good."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator

import psycopg

from capataz.contracts.errors import StoreUnavailable
from capataz.store.connection import Database

CHANNEL = "capataz"
_RETRY_S = (0.05, 2.0)
GAP_S = 0.02  # between two looks: a run that commits often must not wake its worker for each commit


class _Subscription(AsyncIterator[str]):
    """Run ids in order of arrival, each once while it waits: a slow reader holds one id a run at most."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._waiting: dict[str, None] = {}
        self._news = asyncio.Event()
        self._closed = False

    def push(self, run_id: str) -> None:
        self._waiting[run_id] = None
        self._news.set()

    def end(self) -> None:
        self._closed = True
        self._news.set()

    async def __anext__(self) -> str:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        run_id = next(iter(self._waiting))
        del self._waiting[run_id]
        return run_id

    async def aclose(self) -> None:
        self._listener.forget(self)
        self.end()


class Listener:
    """Starts with the first subscriber and stops with the last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscribers: weakref.WeakSet[_Subscription] = weakref.WeakSet()  # one that is dropped unclosed must not stay
        self._task: asyncio.Task[None] | None = None

    def subscribe(self) -> _Subscription:
        subscription = _Subscription(self)
        self._subscribers.add(subscription)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name="capataz-listen")
        return subscription

    def forget(self, subscription: _Subscription) -> None:
        self._subscribers.discard(subscription)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self) -> None:
        pause, longest = _RETRY_S
        while True:
            with contextlib.suppress(psycopg.Error, StoreUnavailable, OSError):
                async with await self._database.connect() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pause = _RETRY_S[0]
                    while True:
                        async for notice in connection.notifies(stop_after=1):  # and whatever came together with it
                            self._tell(notice.payload)
                        await asyncio.sleep(GAP_S)
            await asyncio.sleep(pause)         # never starts a server: who listens only must not undo `capataz db stop`
            pause = min(pause * 2, longest)

    def _tell(self, run_id: str) -> None:
        for subscription in list(self._subscribers):
            subscription.push(run_id)

    async def close(self) -> None:
        for subscription in list(self._subscribers):
            subscription.end()
        self._subscribers.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
