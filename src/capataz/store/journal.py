"""The journal port on PostgreSQL.

Each write bears repetition: ``Database.run`` repeats it on a new connection when the answer of a commit was lost. Writes that
are not idempotent by their keys (claim, post, answer) carry a token, by which a repeated one finds itself.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import AlreadyAnswered, NotFound
from capataz.contracts.journal import (
    AccountRecord,
    AskRecord,
    Batch,
    EffectRow,
    Holder,
    InboxItem,
    Lease,
    NewEvent,
    NewRun,
    RunRecord,
    StateAddress,
    StateRecord,
    StateWrite,
    Usage,
)
from capataz.contracts.signals import LeaseLost
from capataz.store import batch as batches
from capataz.store import rows
from capataz.store.announcer import Announcer
from capataz.store.connection import Connection, Database
from capataz.store.exchange import Exchange
from capataz.store.listener import Listener
from capataz.store.queries import sql
from capataz.store.values import dump, plain, text

_COMMIT = Exchange("capataz_commit", "text, bigint, text, jsonb", "SELECT capataz_commit($1, $2, $3, $4)")
_MISTAKES = ("CZ001", "CZ002")                 # raised by capataz_commit: the writer is wrong, nothing was stored


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"run {lease.run_id}: epoch {lease.epoch} of {lease.holder.worker} is over; another worker holds the run")


class PgJournal:
    """Implements ``contracts.journal.Journal``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listener = Listener(database)
        self._announcer = Announcer(lambda run_id: self._all("runs.announce", run_id=run_id))

    # ---- statements ----

    async def _all(self, name: str, /, **values: Any) -> list[rows.Row]:
        statement = sql(name)

        async def work(connection: Connection) -> list[rows.Row]:
            return await (await connection.execute(statement, values)).fetchall()

        return await self._database.run(work)

    async def _one(self, name: str, /, **values: Any) -> rows.Row | None:
        found = await self._all(name, **values)
        return found[0] if found else None

    # ---- runs and sources ----

    async def put_source(self, digest: str, files: dict[str, str]) -> None:
        statement, values = sql("runs.put_source"), {"digest": digest, "files": dump(files)}

        async def work(connection: Connection) -> None:
            await connection.execute(statement, values)

        await self._database.run(work)

    async def get_source(self, digest: str) -> dict[str, str]:
        row = await self._one("runs.get_source", digest=digest)
        if row is None:
            raise NotFound(f"no program source {digest} is stored here")
        return row[0]

    async def create_run(self, run: NewRun) -> RunRecord:
        await self._all(
            "runs.create",
            run_id=run.run_id,
            program=text(run.program),
            input=dump(run.input),
            options=dump(run.options),
            source_digest=run.source_digest,
            parent_run=run.parent_run,
            tenant=text(run.tenant),
            repository=text(run.repository),
            created_at=run.created_at,
        )
        return await self.get_run(run.run_id)

    async def get_run(self, run_id: str) -> RunRecord:
        row = await self._one("runs.get", run_id=text(run_id))
        if row is None:
            raise NotFound(f"no run {run_id!r} here; `capataz ps` lists the runs")
        return rows.run(row)

    async def list_runs(self, *, limit: int = 50, tenant: str | None = None, parent_run: str | None = None) -> list[RunRecord]:
        found = await self._all("runs.list", limit=limit, tenant=text(tenant), parent_run=parent_run)
        return [rows.run(row) for row in found]

    # ---- leases ----

    async def lease(self, run_id: str) -> Lease | None:
        row = await self._one("leases.get", run_id=text(run_id))
        return rows.lease(row) if row else None

    async def claim(self, run_id: str, holder: Holder, *, ttl_s: float, replace_epoch: int | None = None) -> Lease | None:
        row = await self._one("leases.claim", run_id=text(run_id), replace_epoch=replace_epoch, **_claim_values(holder, ttl_s))
        if row is None and not await self._one("runs.exists", run_id=text(run_id)):
            raise NotFound(f"no run {run_id!r} here; `capataz ps` lists the runs")
        return rows.lease(row) if row else None

    async def claim_ready(self, holder: Holder, *, ttl_s: float, limit: int = 1) -> list[Lease]:
        values = _claim_values(holder, ttl_s) | {"limit": limit}
        tried = False

        async def work(connection: Connection) -> list[rows.Row]:
            nonlocal tried
            if tried:                          # by itself: SKIP LOCKED may pass over rows that are ours already
                found = await (await connection.execute(sql("leases.claimed"), values)).fetchall()
                if found:
                    return found
            tried = True
            return await (await connection.execute(sql("leases.claim_ready"), values)).fetchall()

        return [rows.lease(row) for row in await self._database.run(work)]

    async def renew(self, lease: Lease, *, ttl_s: float) -> Lease:
        row = await self._one("leases.renew", run_id=lease.run_id, epoch=lease.epoch, worker=text(lease.holder.worker), ttl_s=ttl_s)
        if row is None:
            raise _lost(lease)
        return rows.lease(row)

    async def release(self, lease: Lease) -> None:
        await self._all("leases.release", run_id=lease.run_id, epoch=lease.epoch, worker=text(lease.holder.worker))

    # ---- the one write ----

    async def commit(self, lease: Lease, batch: Batch) -> None:
        quiet = batch.run is None and bool(batch.events) and self._announcer.may_be_quiet(lease.run_id)
        worker = lease.holder.worker
        values = (lease.run_id.encode(), str(lease.epoch).encode(), (text(worker) or "").encode(), batches.encode(batch, quiet=quiet))

        async def work(connection: Connection) -> str:
            try:
                return await _COMMIT.call(connection, values)
            except psycopg.DatabaseError as error:
                if error.sqlstate in _MISTAKES:
                    raise ValueError(str(error).splitlines()[0]) from error
                raise

        if await self._database.run(work) != "ok":
            raise _lost(lease)
        if quiet:
            self._announcer.owe(lease.run_id)

    # ---- reads ----

    async def effects(self, run_id: str, *, generation: int | None = None) -> list[EffectRow]:
        with _uncollected():
            found = await self._all("reads.effects", run_id=run_id, generation=generation)
            return [rows.effect(row) for row in found]

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[NewEvent]:
        found = await self._all("reads.events", run_id=run_id, after=after, limit=limit)
        return [rows.event(row) for row in found]

    async def accounts(self, run_id: str) -> list[AccountRecord]:
        limits = await self._all("reads.accounts", run_id=run_id)
        return rows.accounts(limits, await self._all("reads.reservations", run_id=run_id))

    async def asks(self, *, run_id: str | None = None, open_only: bool = True) -> list[AskRecord]:
        found = await self._all("people.asks", run_id=text(run_id), open_only=open_only)
        return [rows.ask(row) for row in found]

    async def get_ask(self, ask_id: str) -> AskRecord:
        record, _ = await self._ask(ask_id)
        return record

    async def _ask(self, ask_id: str) -> tuple[AskRecord, str | None]:
        row = await self._one("people.ask", ask_id=text(ask_id))
        if row is None:
            raise NotFound(f"no question {ask_id!r} here; `capataz asks` lists the open ones")
        return rows.ask(row[:-1]), row[-1]

    async def archive(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[EffectRow]:
        return [rows.effect(row) for row in await self._all("reads.archive", run_id=run_id, after=after, limit=limit)]

    async def timers(self, run_id: str) -> dict[str, float]:
        return {plain(effect): due for effect, due in await self._all("reads.timers", run_id=run_id)}

    async def usage(self, run_id: str) -> Usage:
        return rows.total(row[0] for row in await self._all("reads.usage", run_id=run_id))

    # ---- state ----

    async def state_get(self, at: StateAddress) -> StateRecord | None:
        row = await self._one("states.get", **_address(at))
        return rows.state(row) if row else None

    async def state_put(self, lease: Lease, write: StateWrite) -> StateRecord | None:
        row = await self._one(
            "states.put",
            run_id=lease.run_id,
            epoch=lease.epoch,
            worker=text(lease.holder.worker),
            expected=write.expected,
            model_version=write.model_version,
            value=dump(write.value),
            effect=text(write.effect),
            written_at=write.written_at,
            **_address(write.at),
        )
        if row is None or row[0] == "lease_lost":
            raise _lost(lease)
        if row[0] == "conflict":
            return None
        (record,) = await self.state_history(write.at, after=write.expected, limit=1)
        return record

    async def state_history(self, at: StateAddress, *, after: int = 0, limit: int = 100) -> list[StateRecord]:
        return [rows.state(row) for row in await self._all("states.history", after=after, limit=limit, **_address(at))]

    # ---- what other processes may do ----

    async def answer(self, ask_id: str, value: JsonValue, *, by: str, channel: str, at: float, note: str | None = None) -> AskRecord:
        token = uuid.uuid4().hex
        values = {"value": dump(value), "by": text(by), "channel": text(channel), "at": at, "note": text(note)}
        await self._all("people.answer", ask_id=text(ask_id), token=token, **values)
        record, stored = await self._ask(ask_id)
        if stored != token:
            raise _decided(record)
        return record

    async def post(self, run_id: str, kind: str, body: JsonValue, *, target: str | None, sender: str, at: float) -> int:
        name = {"run_id": text(run_id), "token": uuid.uuid4().hex}
        item = {"kind": kind, "target": text(target), "body": dump(body), "sender": text(sender), "at": at}

        async def work(connection: Connection) -> int | None:
            async with connection.transaction():
                # The row lock of `wake` orders the numbers, and a racing park: whoever comes second sees the other.
                if not await (await connection.execute(sql("people.wake"), name)).fetchone():
                    return None
                row = await (await connection.execute(sql("people.posted"), name)).fetchone()
                row = row or await (await connection.execute(sql("people.post"), name | item)).fetchone()
            return row[0] if row else None

        seq = await self._database.run(work)
        if seq is None:
            raise NotFound(f"no run {run_id!r} here; `capataz ps` lists the runs")
        return seq

    async def inbox(self, run_id: str) -> list[InboxItem]:
        return [rows.inbox_item(row) for row in await self._all("reads.inbox", run_id=run_id)]

    # ---- wake-ups ----

    def listen(self) -> AsyncIterator[str]:
        """Listens from this call on. ``aclose()`` of the iterator ends it early."""
        return self._listener.subscribe()

    async def close(self) -> None:
        await self._announcer.close()
        await self._listener.close()
        await self._database.close()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Ten thousand new rows are no garbage, but would make Python look for some again and again: a third of the time to read them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _address(at: StateAddress) -> dict[str, Any]:
    return {"reach": at.reach, "owner": text(at.owner), "name": text(at.name)}


def _claim_values(holder: Holder, ttl_s: float) -> dict[str, Any]:
    who = {"worker": text(holder.worker), "boot": text(holder.boot), "pid": holder.pid, "pid_start": holder.pid_start}
    return who | {"ttl_s": ttl_s, "token": uuid.uuid4().hex}


def _decided(record: AskRecord) -> AlreadyAnswered:
    if record.closed is not None:
        return AlreadyAnswered(f"question {record.ask_id} is no longer open ({record.closed})", run_id=record.run_id, closed=record.closed)
    return AlreadyAnswered(
        f"question {record.ask_id} was already answered by {record.answered_by}",
        run_id=record.run_id,
        answer=record.answer,
        by=record.answered_by,
        at=record.answered_at,
        channel=record.answer_channel,
    )
