"""A worker: it claims runs, keeps their leases alive, passes wake-ups on, and drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import AlreadyAnswered, RunNotResumable, RunTakenOver, StoreUnavailable
from capataz.contracts.journal import FINAL_STATES, AskRecord, Lease, NewEvent, RunRecord
from capataz.contracts.signals import LeaseLost
from capataz.vm.holder import known_dead
from capataz.vm.ports import Parking, Ports
from capataz.vm.run import LEASE_S, Run

AskPerson = Callable[[AskRecord], Awaitable[tuple[JsonValue, str] | None]]
"""Gives the value and who answered; None leaves the question open."""


class Worker:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._runs: dict[str, Run] = {}
        self._listener: asyncio.Task[None] | None = None
        self._draining = False

    async def claim(self, run_id: str) -> Lease:
        """Raises ``RunNotResumable`` while another live worker holds the run."""
        journal = self._ports.journal
        present = await journal.lease(run_id)
        dead = present.epoch if present is not None and known_dead(present.holder) else None
        lease = await journal.claim(run_id, self._ports.holder, ttl_s=LEASE_S, replace_epoch=dead)
        if lease is None:
            by = f" by {present.holder.worker}" if present is not None else ""
            raise RunNotResumable(f"run {run_id} is being carried on{by}; watch it with `capataz events {run_id} -f`")
        return lease

    async def held_by_other(self, run_id: str) -> bool:
        """A live worker other than this process holds the run."""
        lease = await self._ports.journal.lease(run_id)
        if lease is None or lease.expires_at <= self._ports.clock.now():
            return False
        return lease.holder.pid != self._ports.holder.pid and not known_dead(lease.holder)

    async def drive(
        self, run_id: str, *, parking: Parking, on_event: Callable[[NewEvent], None] | None = None, ask: AskPerson | None = None
    ) -> RunRecord:
        """Carries one run on until it ends or parks. Cancelling it stops at once; the run stays resumable."""
        lease = await self.claim(run_id)
        try:
            async with self._holding(lease):
                run = await Run.open(self._ports, lease, parking)
                if on_event is not None:
                    run.add_listener(on_event)
                return await self._carry(run, ask)
        except LeaseLost as lost:
            await self._tidy(run_id)
            raise RunTakenOver(
                f"another worker took run {run_id} over, because this one did not answer for {LEASE_S:g} s; nothing more was written here; "
                f"watch it with `capataz events {run_id} -f`", run_id=run_id,
            ) from lost

    async def _carry(self, run: Run, ask: AskPerson | None) -> RunRecord:
        self._runs[run.run_id] = run
        self._listen()
        if self._draining:
            run.request_stop("drain")
        helpers = [asyncio.create_task(self._keep_lease(run))]
        if ask is not None:
            helpers.append(asyncio.create_task(self._ask_person(run, ask)))
        try:
            return await run.drive()
        finally:
            del self._runs[run.run_id]
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _tidy(self, run_id: str) -> None:
        """What this worker still put on disk after another one had finished the run and cleaned up."""
        if (await self._ports.journal.get_run(run_id)).state in FINAL_STATES:
            await self._ports.coding.cleanup(run_id)

    @asynccontextmanager
    async def _holding(self, lease: Lease) -> AsyncIterator[None]:
        try:
            yield
        finally:
            try:
                await self._ports.journal.release(lease)
            except (LeaseLost, StoreUnavailable):
                pass  # somebody else's now, or gone with the store: it expires by itself

    async def _keep_lease(self, run: Run) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await run.renew()
            except LeaseLost as lost:
                run.lose(lost)
                return
            except StoreUnavailable:
                continue  # the database may come back before the lease is over; commits are fenced anyway

    async def _ask_person(self, run: Run, ask: AskPerson) -> None:
        """Puts open questions to the person at the terminal, one after the other."""
        refused: set[str] = set()
        while True:
            await run.quiet_changed.wait()
            run.quiet_changed.clear()
            for ask_id in run.waiting_asks():
                if ask_id in refused:
                    continue
                answer = await ask(await self._ports.journal.get_ask(ask_id))
                if answer is None:
                    refused.add(ask_id)
                    run.park_on_asks()
                    continue
                value, by = answer
                await self._store_answer(run, ask_id, value, by)

    async def _store_answer(self, run: Run, ask_id: str, value: JsonValue, by: str) -> None:
        try:
            await self._ports.journal.answer(ask_id, value, by=by, channel="terminal", at=self._ports.clock.now())
        except AlreadyAnswered:
            pass  # somebody was faster; the run goes on with their decision
        run.inbox.wake()

    def request_drain(self) -> None:
        """Every run parks at its next safe point; no new one is claimed."""
        self._draining = True
        for run in self._runs.values():
            run.request_stop("drain")

    # ---- wake-ups ------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._pass_on())

    async def _pass_on(self) -> None:
        async for run_id in self._ports.journal.listen():
            run = self._runs.get(run_id)
            if run is not None:
                run.inbox.wake()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
