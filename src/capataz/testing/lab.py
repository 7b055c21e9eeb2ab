"""A laboratory for programs: journal and blobs in memory, fake agents, a clock that may skip, and crashes on demand.

The program runs as everywhere, in a program process of its own; only what lies below the kernel is fake.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import JsonValue, digest_bytes
from capataz.contracts.clock import Clock, SystemClock
from capataz.contracts.errors import NotFound, UsageError
from capataz.contracts.faults import Faults, NoFaults
from capataz.contracts.ids import new_run_id
from capataz.contracts.journal import (
    Batch,
    Holder,
    Journal,
    Lease,
    NewEvent,
    NewRun,
    RunRecord,
    RunUpdate,
    StateRecord,
    StateWrite,
)
from capataz.contracts.signals import LeaseLost
from capataz.testing.fake_agents import FakeAgents, FakeHarness, Respond
from capataz.testing.memory_journal import MemoryJournal
from capataz.vm.closure import find
from capataz.vm.edits import find_edited
from capataz.vm.fork import find_row, forked_run
from capataz.vm.large import LargeValues
from capataz.vm.plan import make_plan
from capataz.vm.ports import Parking, Ports
from capataz.vm.worker import Worker
from capataz.vm.zygote import Zygote


class MemoryBlobs(Blobs):
    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        uri = f"blob:{digest_bytes(data)}"
        self._data[uri] = data
        return uri

    async def get(self, uri: str) -> bytes:
        if uri not in self._data:
            raise NotFound(f"no blob {uri}")
        return self._data[uri]

    async def size(self, uri: str) -> int:
        return len(await self.get(uri))

    async def close(self) -> None:
        pass


class NoCoding:
    """A coding port that does nothing: for programs that write no code."""

    async def cleanup(self, run_id: str) -> None:
        pass

    def __getattr__(self, verb: str) -> Any:
        raise UsageError(f"this laboratory has no coding.{verb}")


class Crash(Faults):
    """Stops the worker at the ``number``th fault point that is reached, as a kill would: nothing is written any more.

    ``number`` 0: never; ``reached`` then counts the points. ``point``: only this one is counted, which another timing of the
    rest does not move.
    """

    def __init__(self, number: int = 0, point: str | None = None) -> None:
        self.reached = 0
        self.counts: Counter[str] = Counter()
        self._point = point
        self.where: str | None = None
        self.journal: _Mortal | None = None
        self.stop: Callable[[], object] = lambda: None
        self._number = number

    def reach(self, point: str) -> None:
        self.reached += 1
        self.counts[point] += 1
        if self._number and self._number == (self.reached if self._point is None else self.counts[point] if point == self._point else 0):
            self.where = point
            if self.journal is not None:
                self.journal.dead = True
            self.stop()
            raise asyncio.CancelledError


class _Mortal:
    """The journal as one worker sees it: after its crash, writes no longer reach it."""

    def __init__(self, journal: Journal) -> None:
        self.dead = False
        self._journal = journal

    async def commit(self, lease: Lease, batch: Batch) -> None:
        if self.dead:
            raise LeaseLost("this worker is dead")
        await self._journal.commit(lease, batch)

    async def state_put(self, lease: Lease, write: StateWrite) -> StateRecord | None:
        if self.dead:
            raise LeaseLost("this worker is dead")
        return await self._journal.state_put(lease, write)

    async def release(self, lease: Lease) -> None:
        if not self.dead:
            await self._journal.release(lease)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


class Lab:
    """``async with open_lab(respond) as lab``, then ``await lab.run("file.py:name", input)``."""

    def __init__(self, respond: Respond, zygote: Zygote, journal: Journal | None = None, clock: Clock | None = None, **fake: Any) -> None:
        self._own_journal = journal
        self.journal = journal or MemoryJournal()
        self.blobs = MemoryBlobs()
        self.large = LargeValues(self.blobs)
        self.harness = FakeHarness(respond, **fake)
        self.clock = clock or SystemClock()
        self._zygote = zygote
        self._workers = 0

    def beside(self) -> Lab:
        """Another one with the same programs' parent, for runs that go on at the same time: the calls are its own."""
        return Lab(self.harness.respond, self._zygote, self._own_journal, self.clock)

    def processes(self) -> list[int]:
        """Program processes that live."""
        pid = self._zygote.pid
        place = Path(f"/proc/{pid}/task/{pid}/children")
        return [int(child) for child in place.read_text().split()] if pid is not None and place.exists() else []

    async def start(self, program: str, input: JsonValue = None, **options: Any) -> str:
        """Stores a run; nothing of it is run yet."""
        source = find(program)
        run_id = new_run_id()
        await self.journal.put_source(source.digest, source.files)
        await self.journal.create_run(NewRun(
            run_id=run_id, program=program, source_digest=source.digest, input=input, options={**options, "ref": source.ref},
            created_at=self.clock.now(),
        ))
        return run_id

    def worker(self, faults: Faults | None = None, journal: Any = None) -> Worker:
        """A worker of its own identity, as another process would be."""
        return Worker(self.ports(faults, journal))

    def ports(self, faults: Faults | None = None, journal: Any = None) -> Ports:
        self._workers += 1
        holder = Holder(worker=f"lab-{self._workers}", boot="lab", pid=self._workers, pid_start=0)
        return Ports(
            journal=journal or self.journal, blobs=self.blobs, clock=self.clock, faults=faults or NoFaults(),
            agents=FakeAgents(self.harness), coding=NoCoding(), zygote=self._zygote,  # type: ignore[arg-type]
            holder=holder, step_env=dict,
        )

    async def drive(
        self, run_id: str, *, parking: Parking | None = None, on_event: Callable[[NewEvent], None] | None = None
    ) -> RunRecord:
        """A fresh worker carries the run on until it ends or parks."""
        await self._take_over(run_id)
        worker = self.worker()
        try:
            return await worker.drive(run_id, parking=parking or Parking(), on_event=on_event)
        finally:
            await worker.close()

    async def crash(
        self, run_id: str, number: int, *, faults: Crash | None = None, parking: Parking | None = None
    ) -> str | None:
        """Drives the run and kills the worker at its ``number``th fault point; None when it ended before."""
        await self._take_over(run_id)
        crash, journal = faults or Crash(number), _Mortal(self.journal)
        crash.journal = journal
        worker = self.worker(crash, journal)
        task = asyncio.create_task(worker.drive(run_id, parking=parking or Parking()))
        crash.stop = task.cancel
        await asyncio.wait([task])
        await worker.close()
        if crash.where is None:
            task.result()
        return crash.where

    async def _take_over(self, run_id: str) -> None:
        """The lease of a dead worker is replaced at once."""
        present = await self.journal.lease(run_id)
        if present is not None:
            holder = Holder(worker="undertaker", boot="lab", pid=0, pid_start=0)
            lease = await self.journal.claim(run_id, holder, ttl_s=60, replace_epoch=present.epoch)
            if lease is not None:
                await self.journal.release(lease)

    async def run(self, program: str, input: JsonValue = None, **options: Any) -> RunRecord:
        return await self.drive(await self.start(program, input, **options))

    async def resume_with(self, run_id: str, file: Path, *, accept_orphans: bool = False) -> RunRecord:
        """Goes on with edited sources, in a new generation."""
        await self.edit(run_id, file, accept_orphans=accept_orphans)
        return await self.drive(run_id)

    async def fork(self, run_id: str, key: str) -> str:
        """Stores a run that takes over the results up to the key; nothing of it is run yet."""
        parent = await self.journal.get_run(run_id)
        at = find_row(await self.journal.effects(run_id), key)
        forked = new_run_id()
        await self.journal.create_run(forked_run(parent, at, run_id=forked, now=self.clock.now()))
        return forked

    async def plan(self, run_id: str, file: Path) -> dict[str, Any]:
        """What going on with edited sources would reuse, run and orphan."""
        run = await self.journal.get_run(run_id)
        source = find_edited(str(file), run.options["ref"])
        return await make_plan(self.ports(), run, source.files, ref=source.ref, source_digest=source.digest)

    async def edit(self, run_id: str, file: Path, *, accept_orphans: bool = False) -> None:
        """Opens the generation of edited sources; nothing of it is run yet."""
        run = await self.journal.get_run(run_id)
        source = find_edited(str(file), run.options["ref"])
        await self.journal.put_source(source.digest, source.files)
        await self._take_over(run_id)
        lease = await self.journal.claim(run_id, Holder(worker="editor", boot="lab", pid=0, pid_start=0), ttl_s=60)
        assert lease is not None
        options = {**run.options, "ref": source.ref}
        if accept_orphans:
            options["accept_orphans"] = run.generation + 1
        update = RunUpdate(
            generation=run.generation + 1, state="queued", source_digest=source.digest, options=options,
            clear=("outcome", "reason", "result", "ended_at", "waiting", "ready_at"),
        )
        await self.journal.commit(lease, Batch(run=update))
        await self.journal.release(lease)


@asynccontextmanager
async def open_lab(respond: Respond, *, journal: Journal | None = None, clock: Clock | None = None, **fake: Any) -> AsyncIterator[Lab]:
    zygote = await Zygote.start()
    try:
        yield Lab(respond, zygote, journal, clock, **fake)
    finally:
        await zygote.close()
