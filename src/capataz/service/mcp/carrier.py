"""Carries on the runs that this server started or was asked about, until they end or wait for something."""

from __future__ import annotations

import asyncio
import contextlib
import time

from capataz.contracts.errors import CapatazError
from capataz.contracts.journal import FINAL_STATES
from capataz.wiring.app import App

POLL_S = 0.5


class Carrier:
    """Its runs are resumable by any other worker when the server is gone."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.troubles: dict[str, str] = {}          # why a run could not be carried on

    def carry(self, run_id: str) -> None:
        """From now on this server looks after the run."""
        task = self._tasks.get(run_id)
        if task is None or task.done():
            self._tasks[run_id] = asyncio.create_task(self._look_after(run_id), name=f"carry {run_id}")

    async def _look_after(self, run_id: str) -> None:
        self.troubles.pop(run_id, None)
        try:
            while (run := await self._app.journal.get_run(run_id)).state not in FINAL_STATES:
                ready = run.state != "parked" or (run.ready_at is not None and run.ready_at <= time.time())
                if ready and not await self._app.held(run_id):
                    await self._app.drive(run_id)
                else:
                    await asyncio.sleep(POLL_S)
        except CapatazError as error:
            self.troubles[run_id] = str(error)

    async def close(self) -> None:
        """Lets what runs come to a safe point; what does not within some seconds is stopped and stays resumable."""
        self._app.request_drain()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
