"""A journal in memory, for tests: the same promises as the real one, except that it dies with the process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, fields, replace
from typing import Any

from capataz.contracts.canonical import JsonValue, canonical_text
from capataz.contracts.errors import AlreadyAnswered, NotFound
from capataz.contracts.journal import (
    AccountRecord,
    AskRecord,
    Batch,
    EffectCompleted,
    EffectRequested,
    EffectRow,
    Holder,
    InboxItem,
    Journal,
    Lease,
    NewAsk,
    NewEvent,
    NewRun,
    Reservation,
    RunRecord,
    RunUpdate,
    Settlement,
    StateAddress,
    StateRecord,
    StateWait,
    StateWrite,
    Usage,
)
from capataz.contracts.signals import LeaseLost


class MemoryJournal(Journal):
    """``now``: the store's own clock, seconds since the Unix epoch."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._sources: dict[str, dict[str, str]] = {}
        self._runs: dict[str, RunRecord] = {}
        self._leases: dict[str, Lease] = {}
        self._released: set[str] = set()
        self._news: set[str] = set()           # runs that got an answer or a post since their last claim
        self._effects: dict[str, dict[tuple[int, str], EffectRow]] = defaultdict(dict)
        self._archive: dict[str, dict[tuple[int, str], EffectRow]] = defaultdict(dict)
        self._states: dict[StateAddress, list[StateRecord]] = defaultdict(list)
        self._state_waits: dict[str, tuple[StateWait, ...]] = {}
        self._events: dict[str, dict[int, NewEvent]] = defaultdict(dict)
        self._asks: dict[str, AskRecord] = {}
        self._inbox: dict[str, dict[int, InboxItem]] = defaultdict(dict)
        self._timers: dict[str, dict[str, float]] = defaultdict(dict)
        self._accounts: dict[str, dict[str, AccountRecord]] = defaultdict(dict)
        self._reserved: dict[str, dict[str, Reservation]] = defaultdict(dict)
        self._settled: dict[str, set[str]] = defaultdict(set)          # of the newest generation
        self.candidates: dict[str, list[JsonValue]] = defaultdict(list)
        self.promotions: dict[str, list[JsonValue]] = defaultdict(list)
        self._seq = itertools.count(1)
        self._listeners: set[asyncio.Queue[str]] = set()
        self.commits = 0

    # ---- runs and sources ----------------------------------------------------------------------

    async def put_source(self, digest: str, files: dict[str, str]) -> None:
        self._sources[digest] = dict(files)

    async def get_source(self, digest: str) -> dict[str, str]:
        if digest not in self._sources:
            raise NotFound(f"no source {digest}")
        return dict(self._sources[digest])

    async def create_run(self, run: NewRun) -> RunRecord:
        record = RunRecord(
            run_id=run.run_id, program=run.program, state="queued", outcome=None, reason=None, input=run.input, options=run.options,
            result=None, source_digest=run.source_digest, generation=0, parent_run=run.parent_run, tenant=run.tenant,
            repository=run.repository, created_at=run.created_at, started_at=None, ended_at=None, ready_at=None, waiting=None, last_event=0,
        )
        return self._runs.setdefault(run.run_id, record)

    async def get_run(self, run_id: str) -> RunRecord:
        if run_id not in self._runs:
            raise NotFound(f"no run {run_id}")
        last = max(self._events[run_id], default=0)
        return replace(self._runs[run_id], last_event=last)

    async def list_runs(self, *, limit: int = 50, tenant: str | None = None, parent_run: str | None = None) -> list[RunRecord]:
        runs = [r for r in self._runs.values() if tenant in (None, r.tenant) and parent_run in (None, r.parent_run)]
        runs.sort(key=lambda r: (r.created_at, r.run_id), reverse=True)
        return [await self.get_run(r.run_id) for r in runs[:limit]]

    # ---- leases --------------------------------------------------------------------------------

    async def lease(self, run_id: str) -> Lease | None:
        return None if run_id in self._released else self._leases.get(run_id)

    async def claim(self, run_id: str, holder: Holder, *, ttl_s: float, replace_epoch: int | None = None) -> Lease | None:
        await self.get_run(run_id)
        present = self._leases.get(run_id)
        live = present is not None and run_id not in self._released and present.expires_at > self._now()
        if live and present is not None and present.epoch != replace_epoch:
            return None
        epoch = present.epoch + 1 if present is not None else 1
        self._released.discard(run_id)
        self._news.discard(run_id)
        self._leases[run_id] = Lease(run_id=run_id, epoch=epoch, holder=holder, expires_at=self._now() + ttl_s)
        return self._leases[run_id]

    async def claim_ready(self, holder: Holder, *, ttl_s: float, limit: int = 1) -> list[Lease]:
        claimed: list[Lease] = []
        for run in sorted(self._runs.values(), key=lambda r: (r.created_at, r.run_id)):
            if len(claimed) == limit:
                break
            due = run.state == "parked" and run.ready_at is not None and run.ready_at <= self._now()
            if run.state in ("queued", "running") or due:
                lease = await self.claim(run.run_id, holder, ttl_s=ttl_s)
                if lease is not None:
                    claimed.append(lease)
        return claimed

    async def renew(self, lease: Lease, *, ttl_s: float) -> Lease:
        self._fence(lease)
        self._leases[lease.run_id] = replace(lease, expires_at=self._now() + ttl_s)
        return self._leases[lease.run_id]

    async def release(self, lease: Lease) -> None:
        present = self._leases.get(lease.run_id)
        if present is not None and present.epoch == lease.epoch:
            self._released.add(lease.run_id)

    def _fence(self, lease: Lease) -> None:
        present = self._leases.get(lease.run_id)
        if present is None or present.epoch != lease.epoch or lease.run_id in self._released:
            raise LeaseLost(f"run {lease.run_id} is in another hand")

    # ---- the one write -------------------------------------------------------------------------

    async def commit(self, lease: Lease, batch: Batch) -> None:
        self._fence(lease)
        canonical_text([asdict(item) for item in (*batch.requested, *batch.completed)])  # refuses what no store could keep
        run_id = lease.run_id
        generation = self._generation_after(run_id, batch.run)
        self._check(run_id, generation, batch)
        if generation > self._runs[run_id].generation:
            self._end_reservations(run_id)
        for limit in batch.accounts:
            self._set_limit(run_id, limit.account, limit.limits)
        for requested in batch.requested:
            self._insert(run_id, generation, requested, lease)
        for reservation in batch.reserved:
            self._reserve(run_id, reservation)
        for completed in batch.completed:
            self._complete(run_id, generation, completed)
        for settlement in batch.settled:
            self._settle(run_id, settlement)
        self._rest(run_id, batch)
        self._move_to_archive(run_id, generation, batch.archived)
        if batch.run is not None:
            self._update(run_id, batch.run, batch.state_waits)
        self.commits += 1
        self._tell(run_id)

    def _check(self, run_id: str, generation: int, batch: Batch) -> None:
        """Mistakes of the writer: nothing is written."""
        numbers = [event.seq for event in batch.events]
        first = max(self._events[run_id], default=0) + 1
        if numbers and (numbers[0] > first or numbers != list(range(numbers[0], numbers[0] + len(numbers)))):
            raise ValueError(f"events of run {run_id} would have a gap: {numbers} after {first - 1}")
        new = {requested.key for requested in batch.requested}
        places = [(generation, done.key) for done in batch.completed if done.key not in new]
        if not all(place in self._effects[run_id] or place in self._archive[run_id] for place in places):
            raise ValueError(f"completion of an effect that was never requested in run {run_id}")

    def _generation_after(self, run_id: str, update: RunUpdate | None) -> int:
        if update is not None and update.generation is not None:
            return update.generation
        return self._runs[run_id].generation

    def _insert(self, run_id: str, generation: int, new: EffectRequested, lease: Lease) -> None:
        self._effects[run_id].setdefault((generation, new.key), EffectRow(
            generation=generation, key=new.key, parent=new.parent, scope=new.scope, kind=new.kind, name=new.name,
            input_digest=new.input_digest, ordinal=new.ordinal, request_no=new.request_no, delivery_no=None, status="requested",
            input=new.input, result=None, error=None, usage=Usage(), started_at=new.started_at, ended_at=None, repeated=False,
            reused_from=new.reused_from, start_tree=new.tree, end_tree=None, worker=lease.holder.worker, epoch=lease.epoch,
        ))

    def _complete(self, run_id: str, generation: int, done: EffectCompleted) -> None:
        place = (generation, done.key)
        row = self._effects[run_id].get(place)
        if row is None or row.status != "requested":
            return
        self._effects[run_id][place] = replace(
            row, status=done.status, delivery_no=done.delivery_no, result=done.result, error=done.error, usage=done.usage,
            ended_at=done.ended_at, end_tree=done.tree, repeated=done.repeated,
        )

    def _set_limit(self, run_id: str, account: str, limits: JsonValue) -> None:
        known = self._accounts[run_id].get(account)
        empty = AccountRecord(account=account, limits=limits, used=Usage(), reserved=Usage(), overrun=Usage())
        self._accounts[run_id][account] = replace(known, limits=limits) if known is not None else empty

    def _reserve(self, run_id: str, reservation: Reservation) -> None:
        if reservation.effect in self._settled[run_id]:
            return
        self._reserved[run_id][reservation.effect] = reservation
        self._sum_reserved(run_id)

    def _end_reservations(self, run_id: str) -> None:
        """A new generation: what older ones left open ends, and its effects reserve anew."""
        self._reserved[run_id].clear()
        self._settled[run_id].clear()
        self._sum_reserved(run_id)

    def _settle(self, run_id: str, settlement: Settlement) -> None:
        reservation = self._reserved[run_id].pop(settlement.effect, None)
        if reservation is None:
            return
        self._settled[run_id].add(settlement.effect)
        kept, over = _split(settlement.usage, reservation.usage)
        for account in reservation.accounts:
            known = self._accounts[run_id][account]
            self._accounts[run_id][account] = replace(known, used=known.used + kept, overrun=known.overrun + over)
        self._sum_reserved(run_id)

    def _sum_reserved(self, run_id: str) -> None:
        for name, account in self._accounts[run_id].items():
            held = [r.usage for r in self._reserved[run_id].values() if name in r.accounts]
            self._accounts[run_id][name] = replace(account, reserved=sum(held, Usage()))

    def _rest(self, run_id: str, batch: Batch) -> None:
        for ask in batch.asks:
            self._asks.setdefault(ask.ask_id, _open(run_id, ask))
        for ask_id, why in batch.asks_closed:
            known = self._asks[ask_id]
            if known.answered_at is None:
                self._asks[ask_id] = replace(known, closed=why)
        for seq in batch.inbox_done:
            self._inbox[run_id].pop(seq, None)
        for key, due in batch.timers:
            self._timers[run_id].setdefault(key, due)
        for key in batch.timers_done:
            self._timers[run_id].pop(key, None)
        for event in batch.events:
            self._events[run_id].setdefault(event.seq, event)
        self.candidates[run_id] += [c for c in batch.candidates if c not in self.candidates[run_id]]
        self.promotions[run_id] += [p for p in batch.promotions if p not in self.promotions[run_id]]

    def _move_to_archive(self, run_id: str, generation: int, keys: tuple[str, ...]) -> None:
        effects, gone = self._effects[run_id], set(keys)
        while gone:
            moved = [effects.pop((generation, key)) for key in [k for n, k in effects if n == generation and k in gone]]
            for row in moved:
                self._archive[run_id].setdefault((generation, row.key), row)
            parents = {row.key for row in moved}
            gone = {row.key for row in effects.values() if row.generation == generation and row.parent in parents}

    def _update(self, run_id: str, update: RunUpdate, waits: tuple[StateWait, ...]) -> None:
        given = {f.name: getattr(update, f.name) for f in fields(RunUpdate) if f.name != "clear"}
        changes = {name: value for name, value in given.items() if value is not None}
        if update.state is not None:           # these two belong to the state
            changes |= {"ready_at": update.ready_at, "waiting": update.waiting}
        cleared: dict[str, Any] = {name: None for name in update.clear}
        self._runs[run_id] = replace(self._runs[run_id], **{**changes, **cleared})
        if update.state is not None:
            self._state_waits[run_id] = waits
        changed = any(len(self._states[wait.at]) > wait.version for wait in waits)
        if update.state == "parked" and (changed or (run_id in self._news and self._has_news(run_id))):
            self._runs[run_id] = replace(self._runs[run_id], ready_at=self._now())

    def _has_news(self, run_id: str) -> bool:
        """Whether something that others left is not yet part of the journal."""
        generation = self._runs[run_id].generation
        answered = {ask.effect for ask in self._asks.values() if ask.run_id == run_id and ask.answered_at is not None}
        waiting = {key for (number, key), row in self._effects[run_id].items() if number == generation and row.status == "requested"}
        return bool(self._inbox[run_id]) or bool(answered & waiting)

    # ---- reads ---------------------------------------------------------------------------------

    async def effects(self, run_id: str, *, generation: int | None = None) -> list[EffectRow]:
        wanted = self._runs[run_id].generation if generation is None else generation
        rows = [row for (number, _), row in self._effects[run_id].items() if number == wanted]
        order = {row.key: (row.request_no if row.request_no is not None else -1) for row in rows}
        return sorted(rows, key=lambda r: (order.get(r.parent or "", -1), order[r.key]))

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[NewEvent]:
        return [self._events[run_id][seq] for seq in sorted(self._events[run_id]) if seq > after][:limit]

    async def accounts(self, run_id: str) -> list[AccountRecord]:
        return list(self._accounts[run_id].values())

    async def asks(self, *, run_id: str | None = None, open_only: bool = True) -> list[AskRecord]:
        found = [a for a in self._asks.values() if run_id in (None, a.run_id)]
        return [a for a in found if not open_only or (a.answered_at is None and a.closed is None)]

    async def get_ask(self, ask_id: str) -> AskRecord:
        if ask_id not in self._asks:
            raise NotFound(f"no question {ask_id}")
        return self._asks[ask_id]

    async def archive(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[EffectRow]:
        return list(self._archive[run_id].values())[after : after + limit]

    async def timers(self, run_id: str) -> dict[str, float]:
        return dict(self._timers[run_id])

    async def usage(self, run_id: str) -> Usage:
        rows = [*self._effects[run_id].values(), *self._archive[run_id].values()]
        return sum((row.usage for row in rows if row.reused_from is None), Usage())

    # ---- state ---------------------------------------------------------------------------------

    async def state_get(self, at: StateAddress) -> StateRecord | None:
        return self._states[at][-1] if self._states[at] else None

    async def state_put(self, lease: Lease, write: StateWrite) -> StateRecord | None:
        self._fence(lease)
        versions = self._states[write.at]
        for known in versions[write.expected : write.expected + 1]:
            return known if (known.run_id, known.effect) == (lease.run_id, write.effect) else None
        if len(versions) != write.expected:
            return None
        versions.append(StateRecord(
            version=write.expected + 1, model_version=write.model_version, value=write.value, run_id=lease.run_id, effect=write.effect,
            written_at=write.written_at,
        ))
        for run_id, waits in self._state_waits.items():
            if any(wait.at == write.at for wait in waits):
                if self._runs[run_id].state == "parked":
                    self._runs[run_id] = replace(self._runs[run_id], ready_at=self._now())
                self._tell(run_id)
        return versions[-1]

    async def state_history(self, at: StateAddress, *, after: int = 0, limit: int = 100) -> list[StateRecord]:
        return self._states[at][after : after + limit]

    # ---- what other processes may do -----------------------------------------------------------

    async def answer(
        self, ask_id: str, value: JsonValue, *, by: str, channel: str, at: float, note: str | None = None
    ) -> AskRecord:
        ask = await self.get_ask(ask_id)
        if ask.answered_at is not None or ask.closed is not None:
            raise AlreadyAnswered(f"{ask_id} was answered already" if ask.closed is None else f"{ask_id} is closed: {ask.closed}")
        self._asks[ask_id] = replace(ask, answer=value, answered_by=by, answered_at=at, answer_channel=channel, note=note)
        self._ready(ask.run_id, at)
        return self._asks[ask_id]

    async def post(self, run_id: str, kind: str, body: JsonValue, *, target: str | None, sender: str, at: float) -> int:
        await self.get_run(run_id)
        seq = next(self._seq)
        item = InboxItem(seq=seq, kind=kind, target=target, body=body, sender=sender, created_at=at)  # type: ignore[arg-type]
        self._inbox[run_id][seq] = item
        self._ready(run_id, at)
        return seq

    def _ready(self, run_id: str, at: float) -> None:
        run = self._runs[run_id]
        self._news.add(run_id)
        if run.state == "parked":
            self._runs[run_id] = replace(run, ready_at=min(at, self._now()))
        self._tell(run_id)

    async def inbox(self, run_id: str) -> list[InboxItem]:
        return [self._inbox[run_id][seq] for seq in sorted(self._inbox[run_id])]

    # ---- wake-ups ------------------------------------------------------------------------------

    def _tell(self, run_id: str) -> None:
        for queue in self._listeners:
            queue.put_nowait(run_id)

    async def listen(self) -> AsyncIterator[str]:  # type: ignore[override]
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    async def close(self) -> None:
        self._listeners.clear()


def _open(run_id: str, ask: NewAsk) -> AskRecord:
    given = {f.name: getattr(ask, f.name) for f in fields(NewAsk)}
    return AskRecord(
        **given, run_id=run_id, answer=None, answered_by=None, answered_at=None, answer_channel=None, note=None, closed=None
    )


def _split(used: Usage, reserved: Usage) -> tuple[Usage, Usage]:
    """What fits into the reserve, and the excess."""
    kept = {name: min(getattr(used, name), getattr(reserved, name)) for name in ("usd", "input_tokens", "output_tokens")}
    over = {name: getattr(used, name) - value for name, value in kept.items()}
    return replace(used, **kept), Usage(**over)
