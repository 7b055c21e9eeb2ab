"""How often those who watch a run are told of its events.

Waking every listener for each commit would double the price of a run that commits a thousand times a second. So one commit
tells at once, those within ``GAP_S`` after it keep quiet, and one last word follows. It is a hint: a poll stands behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import psycopg

from capataz.contracts.errors import StoreUnavailable

GAP_S = 0.05


class Announcer:
    def __init__(self, tell: Callable[[str], Awaitable[object]]) -> None:
        self._tell = tell
        self._owed: dict[str, bool] = {}       # runs of which was told within the gap; True: something is untold
        self._tasks: set[asyncio.Task[None]] = set()

    def may_be_quiet(self, run_id: str) -> bool:
        """Whether the coming commit need not tell. One that need not must call ``owe`` when it is done."""
        if run_id in self._owed:
            return True
        self._begin(run_id, owed=False)
        return False

    def owe(self, run_id: str) -> None:
        """A quiet commit is done: it will be told of when the gap is over."""
        if run_id in self._owed:
            self._owed[run_id] = True
        else:
            self._begin(run_id, owed=True)

    def _begin(self, run_id: str, *, owed: bool) -> None:
        self._owed[run_id] = owed
        task = asyncio.create_task(self._follow(run_id), name=f"capataz-announce {run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, run_id: str) -> None:
        try:
            while True:
                await asyncio.sleep(GAP_S)
                if not self._owed[run_id]:
                    return
                self._owed[run_id] = False
                with contextlib.suppress(psycopg.Error, StoreUnavailable):
                    await self._tell(run_id)
        finally:
            del self._owed[run_id]

    async def close(self) -> None:
        """What is still owed is not told."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
