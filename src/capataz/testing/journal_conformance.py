"""The conformance suite of the journal port. It runs against every implementation, the one in memory included.

``CASES`` holds async functions that take a factory of an empty journal and raise ``AssertionError`` with what is wrong. No case
sleeps: a lease of no time has run out at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

from capataz.contracts.errors import AlreadyAnswered, NotFound
from capataz.contracts.journal import (
    AccountLimit,
    Batch,
    EffectCompleted,
    EffectRequested,
    Holder,
    Journal,
    Lease,
    NewAsk,
    NewEvent,
    NewRun,
    Reservation,
    RunUpdate,
    Settlement,
    StateAddress,
    StateWait,
    StateWrite,
    Usage,
)
from capataz.contracts.signals import LeaseLost

Factory = Callable[[], Awaitable[Journal]]
Case = Callable[[Factory], Awaitable[None]]
CASES: list[Case] = []

ALICE = Holder(worker="alice", boot="boot-1", pid=10, pid_start=100)
BOB = Holder(worker="bob", boot="boot-1", pid=11, pid_start=101)
LONG, OVER = 600.0, 0.0                        # lifetimes of leases, in seconds


def case(function: Callable[[Journal], Awaitable[None]]) -> Callable[[Journal], Awaitable[None]]:
    """Registers a case: opens the journal for it and closes it."""

    async def run(factory: Factory) -> None:
        journal = await factory()
        try:
            await function(journal)
        finally:
            await journal.close()

    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    CASES.append(run)
    return function


# ---- material -----------------------------------------------------------------------------------


def new_run(run_id: str = "r1", **changes: Any) -> NewRun:
    base = NewRun(run_id=run_id, program="audit", source_digest="d" * 64, input={"n": 1}, options={"yes": True}, created_at=1000.0)
    return replace(base, **changes)


def requested(key: str, no: int | None, **changes: Any) -> EffectRequested:
    base = EffectRequested(
        key=key, parent=None, scope="", kind="step", name=key, input_digest="e" * 64, ordinal=0, request_no=no, input={"key": key}, started_at=10.0
    )
    return replace(base, **changes)


def completed(key: str, no: int | None, **changes: Any) -> EffectCompleted:
    return replace(EffectCompleted(key=key, status="ok", delivery_no=no, result={"of": key}, ended_at=11.0), **changes)


def event(seq: int, **changes: Any) -> NewEvent:
    return replace(NewEvent(seq=seq, type="program.checkpoint", at=12.5, effect=None, data={"message": str(seq), "data": None}), **changes)


def new_ask(ask_id: str = "a1", **changes: Any) -> NewAsk:
    base = NewAsk(
        ask_id=ask_id, effect="k1", kind="approval", question="Promote?", options=["approve", "decline"], schema=None, context={"diff": 3},
        approvers=("ana", "bo"), channel=None, risk="low", binding="f" * 64, opened_at=20.0, expires_at=None,
    )  # fmt: skip
    return replace(base, **changes)


async def started(journal: Journal, run_id: str = "r1", holder: Holder = ALICE, **changes: Any) -> Lease:
    """A run that ``holder`` has claimed."""
    await journal.create_run(new_run(run_id, **changes))
    lease = await journal.claim(run_id, holder, ttl_s=LONG)
    assert lease is not None, "a fresh run can be claimed"
    return lease


@asynccontextmanager
async def refused(kind: type[BaseException], why: str) -> AsyncIterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} expected: {why}")


async def everything(journal: Journal, run_id: str) -> Any:
    """All that can be read of a run, for "nothing changed"."""
    return (
        await journal.get_run(run_id),
        await journal.effects(run_id),
        await journal.events(run_id),
        await journal.accounts(run_id),
        await journal.asks(run_id=run_id, open_only=False),
        await journal.timers(run_id),
        await journal.inbox(run_id),
        await journal.usage(run_id),
    )


# ---- runs and sources ---------------------------------------------------------------------------


@case
async def sources_are_kept_by_digest(journal: Journal) -> None:
    files = {"main": "print('ü')\n", "other": ""}
    await journal.put_source("s1", files)
    await journal.put_source("s1", files)
    assert await journal.get_source("s1") == files
    async with refused(NotFound, "an unknown source"):
        await journal.get_source("s2")


@case
async def a_run_reads_back_as_it_was_made(journal: Journal) -> None:
    run = new_run(parent_run="r0", tenant="acme", repository="/srv/ü b", input={"deep": [1, {"x": None}]})
    record = await journal.create_run(run)
    assert record == await journal.get_run("r1")
    assert (record.state, record.generation, record.last_event) == ("queued", 0, 0)
    assert (record.input, record.options, record.parent_run, record.tenant, record.repository) == (
        run.input, run.options, "r0", "acme", "/srv/ü b",
    )  # fmt: skip
    assert record.outcome is record.reason is record.result is record.ready_at is record.started_at is None


@case
async def making_a_run_twice_makes_one(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(run=RunUpdate(state="running", started_at=5.0)))
    again = await journal.create_run(new_run())
    assert again.state == "running", "the second call returns the run as it is"
    assert len(await journal.list_runs()) == 1


@case
async def an_unknown_run_is_not_found(journal: Journal) -> None:
    async with refused(NotFound, "get_run"):
        await journal.get_run("r404")
    async with refused(NotFound, "claim"):
        await journal.claim("r404", ALICE, ttl_s=LONG)
    async with refused(NotFound, "post"):
        await journal.post("r404", "message", "hi", target=None, sender="ana", at=1.0)
    async with refused(NotFound, "get_ask"):
        await journal.get_ask("a404")
    async with refused(NotFound, "answer"):
        await journal.answer("a404", "approve", by="ana", channel="cli", at=1.0)
    assert await journal.lease("r404") is None


@case
async def runs_are_listed_newest_first(journal: Journal) -> None:
    for number, tenant in ((1, "a"), (3, "b"), (2, "a")):
        await journal.create_run(new_run(f"r{number}", created_at=float(number), tenant=tenant, parent_run="r1" if number == 2 else None))
    assert [r.run_id for r in await journal.list_runs()] == ["r3", "r2", "r1"]
    assert [r.run_id for r in await journal.list_runs(limit=1)] == ["r3"]
    assert [r.run_id for r in await journal.list_runs(tenant="a")] == ["r2", "r1"]
    assert [r.run_id for r in await journal.list_runs(parent_run="r1")] == ["r2"]


@case
async def a_run_update_changes_what_it_names(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(run=RunUpdate(state="running", started_at=5.0, options={"yes": False})))
    await journal.commit(lease, Batch(run=RunUpdate(outcome="failed", reason={"code": "x"}, result=[1], source_digest="c" * 64)))
    run = await journal.get_run("r1")
    assert (run.state, run.started_at, run.options, run.outcome, run.reason, run.result, run.source_digest) == (
        "running", 5.0, {"yes": False}, "failed", {"code": "x"}, [1], "c" * 64,
    )  # fmt: skip
    await journal.commit(lease, Batch(run=RunUpdate(state="failed", ended_at=9.0, clear=("outcome", "result"))))
    run = await journal.get_run("r1")
    assert (run.state, run.ended_at, run.outcome, run.result, run.reason) == ("failed", 9.0, None, None, {"code": "x"})


# ---- leases -------------------------------------------------------------------------------------


@case
async def a_live_lease_is_exclusive(journal: Journal) -> None:
    lease = await started(journal)
    assert await journal.lease("r1") == lease
    assert lease.holder == ALICE
    assert await journal.claim("r1", BOB, ttl_s=LONG) is None
    assert await journal.claim("r1", BOB, ttl_s=LONG, replace_epoch=lease.epoch + 1) is None


@case
async def a_dead_holder_is_replaced_at_once(journal: Journal) -> None:
    old = await started(journal)
    new = await journal.claim("r1", BOB, ttl_s=LONG, replace_epoch=old.epoch)
    assert new is not None and new.epoch == old.epoch + 1 and new.holder == BOB
    assert await journal.claim("r1", ALICE, ttl_s=LONG, replace_epoch=old.epoch) is None, "only the lease that was looked at is replaced"


@case
async def a_lease_that_ran_out_can_be_taken(journal: Journal) -> None:
    await journal.create_run(new_run())
    old = await journal.claim("r1", ALICE, ttl_s=OVER)
    assert old is not None
    assert await journal.lease("r1") == old, "an expired lease is still told"
    new = await journal.claim("r1", BOB, ttl_s=LONG)
    assert new is not None and new.epoch > old.epoch


@case
async def a_released_lease_is_nobodys_and_epochs_grow(journal: Journal) -> None:
    old = await started(journal)
    await journal.release(old)
    await journal.release(old)
    assert await journal.lease("r1") is None
    new = await journal.claim("r1", BOB, ttl_s=LONG)
    assert new is not None and new.epoch > old.epoch
    await journal.release(old)
    assert await journal.lease("r1") == new, "a stale release frees nothing"


@case
async def a_stale_epoch_writes_nothing(journal: Journal) -> None:
    old = await started(journal)
    new = await journal.claim("r1", BOB, ttl_s=LONG, replace_epoch=old.epoch)
    assert new is not None
    before = await everything(journal, "r1")
    full = Batch(
        accounts=(AccountLimit(account="", limits={"turns": 1}),), requested=(requested("k1", 0),), completed=(completed("k1", 0),),
        asks=(new_ask(),), timers=(("k1", 1.0),), events=(event(1),), run=RunUpdate(state="failed"),
    )  # fmt: skip
    async with refused(LeaseLost, "a commit of a stale epoch"):
        await journal.commit(old, full)
    async with refused(LeaseLost, "an empty commit of a stale epoch"):
        await journal.commit(old, Batch())
    async with refused(LeaseLost, "a renewal of a stale epoch"):
        await journal.renew(old, ttl_s=LONG)
    assert await everything(journal, "r1") == before
    await journal.commit(new, full)


@case
async def a_released_epoch_writes_nothing(journal: Journal) -> None:
    lease = await started(journal)
    await journal.release(lease)
    async with refused(LeaseLost, "a commit after the release"):
        await journal.commit(lease, Batch(events=(event(1),)))
    assert await journal.events("r1") == []


@case
async def a_late_holder_that_nobody_replaced_goes_on(journal: Journal) -> None:
    await journal.create_run(new_run())
    lease = await journal.claim("r1", ALICE, ttl_s=OVER)
    assert lease is not None
    await journal.commit(lease, Batch(events=(event(1),)))
    renewed = await journal.renew(lease, ttl_s=LONG)
    assert renewed.epoch == lease.epoch and renewed.expires_at > lease.expires_at
    assert await journal.claim("r1", BOB, ttl_s=LONG) is None


# ---- claim_ready --------------------------------------------------------------------------------


@case
async def ready_runs_are_claimed_oldest_first(journal: Journal) -> None:
    for number in (2, 1, 3):
        await journal.create_run(new_run(f"r{number}", created_at=float(number)))
    assert [lease.run_id for lease in await journal.claim_ready(ALICE, ttl_s=LONG, limit=2)] == ["r1", "r2"]
    assert [lease.run_id for lease in await journal.claim_ready(BOB, ttl_s=LONG, limit=9)] == ["r3"]
    assert await journal.claim_ready(BOB, ttl_s=LONG) == []


@case
async def only_ready_runs_are_claimed(journal: Journal) -> None:
    states: dict[str, RunUpdate] = {
        "asleep": RunUpdate(state="parked", waiting=[{"on": "ask"}]),
        "later": RunUpdate(state="parked", ready_at=4e9),
        "due": RunUpdate(state="parked", ready_at=1.0),
        "crashed": RunUpdate(state="running"),
        "done": RunUpdate(state="completed"),
        "failed": RunUpdate(state="failed", ready_at=1.0),
        "cancelled": RunUpdate(state="cancelled"),
    }
    for name, update in states.items():
        lease = await started(journal, name)
        await journal.commit(lease, Batch(run=update))
        await journal.release(lease)
    assert {lease.run_id for lease in await journal.claim_ready(BOB, ttl_s=LONG, limit=9)} == {"due", "crashed"}


@case
async def a_claimed_run_stays_ready_until_its_holder_says_otherwise(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(run=RunUpdate(state="parked", ready_at=1.0)))
    await journal.release(lease)
    (first,) = await journal.claim_ready(ALICE, ttl_s=OVER)
    (second,) = await journal.claim_ready(BOB, ttl_s=LONG)
    assert second.epoch > first.epoch, "the first died before it wrote anything"
    await journal.commit(second, Batch(run=RunUpdate(state="running", clear=("ready_at", "waiting"))))
    assert (await journal.get_run("r1")).ready_at is None


@case
async def claims_at_once_give_each_run_to_one(journal: Journal) -> None:
    for number in range(8):
        await journal.create_run(new_run(f"r{number}", created_at=float(number)))
    holders = [replace(ALICE, worker=f"w{number}") for number in range(4)]
    rounds = [await asyncio.gather(*(journal.claim_ready(h, ttl_s=LONG, limit=3) for h in holders)) for _ in range(3)]
    claimed = [lease.run_id for answers in rounds for leases in answers for lease in leases]
    assert sorted(claimed) == [f"r{number}" for number in range(8)]


# ---- effects ------------------------------------------------------------------------------------


@case
async def an_effect_reads_back_as_it_was_written(journal: Journal) -> None:
    lease = await started(journal)
    used = Usage(input_tokens=5, output_tokens=7, cached_tokens=2, usd=Decimal("0.0000001"), model_calls=1, wall_s=0.1)
    new = requested("s/step:a#1.0", 0, scope="s", name="a", ordinal=3, tree="t0", input={"a": [1, 2.5, "ü", None]})
    await journal.commit(lease, Batch(requested=(new,)))
    (row,) = await journal.effects("r1")
    assert (row.status, row.delivery_no, row.result, row.ended_at, row.usage) == ("requested", None, None, None, Usage())
    await journal.commit(lease, Batch(completed=(completed("s/step:a#1.0", 0, usage=used, tree="t1", repeated=True, error={"code": "x"}),)))
    (row,) = await journal.effects("r1")
    assert (row.key, row.scope, row.kind, row.name, row.ordinal, row.request_no) == ("s/step:a#1.0", "s", "step", "a", 3, 0)
    assert (row.input, row.input_digest, row.started_at, row.start_tree, row.parent, row.reused_from) == (new.input, "e" * 64, 10.0, "t0", None, None)
    assert (row.status, row.delivery_no, row.result, row.error, row.usage) == ("ok", 0, {"of": "s/step:a#1.0"}, {"code": "x"}, used)
    assert (row.ended_at, row.end_tree, row.repeated, row.generation) == (11.0, "t1", True, 0)
    assert (row.worker, row.epoch) == ("alice", lease.epoch)


@case
async def a_completed_effect_never_changes(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), completed=(completed("k1", 0),)))
    before = await journal.effects("r1")
    await journal.commit(lease, Batch(completed=(completed("k1", 1, status="error", result="other"),)))
    await journal.commit(lease, Batch(requested=(requested("k1", 5, input="other"),)))
    assert await journal.effects("r1") == before


@case
async def a_completion_of_what_was_never_requested_is_a_mistake(journal: Journal) -> None:
    lease = await started(journal)
    async with refused(ValueError, "a completion without a request"):
        await journal.commit(lease, Batch(requested=(requested("k1", 0),), completed=(completed("k1", 0), completed("k2", 1)), events=(event(1),)))
    assert await journal.effects("r1") == [] and await journal.events("r1") == []


@case
async def effects_come_in_the_order_of_requests(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("z", 0, kind="agent"), requested("m", 1, kind="agent"))))
    await journal.commit(lease, Batch(requested=(requested("m>model", None, parent="m", kind="model"),)))
    await journal.commit(lease, Batch(requested=(requested("z>model", None, parent="z", kind="model"), requested("a", 2))))
    keys = [row.key for row in await journal.effects("r1")]
    assert [key for key in keys if ">" not in key] == ["z", "m", "a"]
    assert all(keys.index(row.parent) < keys.index(row.key) for row in await journal.effects("r1") if row.parent is not None)


@case
async def a_generation_adds_rows(journal: Journal) -> None:
    lease = await started(journal)
    spent = Usage(model_calls=1, usd=Decimal("0.5"))
    await journal.commit(lease, Batch(requested=(requested("k1", 0), requested("k2", 1)), completed=(completed("k1", 0, usage=spent),)))
    old = await journal.effects("r1")
    batch = Batch(requested=(requested("k1", 0, reused_from=0),), completed=(completed("k1", 0, usage=spent),), run=RunUpdate(generation=1, state="queued"))
    await journal.commit(lease, batch)
    await journal.commit(lease, batch)
    (row,) = await journal.effects("r1")
    assert (row.generation, row.reused_from, row.status) == (1, 0, "ok")
    assert await journal.effects("r1", generation=0) == old
    assert await journal.usage("r1") == spent, "a reused result was not paid for again"


@case
async def usage_sums_what_was_performed(journal: Journal) -> None:
    lease = await started(journal)
    assert await journal.usage("r1") == Usage()
    rows = (
        requested("g", 0, kind="agent"),
        requested("g>m0", None, kind="model", parent="g"),
        requested("g>t0", None, kind="tool", parent="g"),
        requested("s", 1),
    )
    done = (
        completed("g>m0", None, usage=Usage(model_calls=1, input_tokens=10, usd=Decimal("0.1"), repeated_model_calls=1), repeated=True),
        completed("g>t0", None, usage=Usage(tool_calls=1, sandbox_s=0.5)),
        completed("g", 0, usage=Usage(agents=1)),
        completed("s", 1, usage=Usage(sandbox_s=0.25, usd=Decimal("0.2"))),
    )
    await journal.commit(lease, Batch(requested=rows, completed=done))
    expected = Usage(model_calls=1, input_tokens=10, usd=Decimal("0.3"), repeated_model_calls=1, tool_calls=1, sandbox_s=0.75, agents=1)
    assert await journal.usage("r1") == expected


@case
async def values_come_back_exactly(journal: Journal) -> None:
    lease = await started(journal)
    values: list[Any] = [
        "\x00", "a\x00b\x1a0000\\u0000", "\ud800", "\udfff\ud83d", "😀 ü \u2028", 0.1, 1e-320, -0.0, 1.7976931348623157e308, 2**63, -(10**30), True,
        {"": {"\x00": [None, False, {}]}}, [[], ""], "x" * 100_000,
    ]  # fmt: skip
    keys = [f"k{number}" for number in range(len(values))]
    new = tuple(requested(key, number, input=value, name="n\x00\x1aü") for number, (key, value) in enumerate(zip(keys, values, strict=True)))
    await journal.commit(lease, Batch(requested=new))
    await journal.commit(lease, Batch(completed=tuple(completed(key, n, result=values[n], error={"message": values[n]}) for n, key in enumerate(keys))))
    for row, value in zip(await journal.effects("r1"), values, strict=True):
        assert repr(row.input) == repr(row.result) == repr(value), "values and their types, signs and escapes"
        assert row.name == "n\x00\x1aü"


# ---- idempotence --------------------------------------------------------------------------------


@case
async def the_same_batch_twice_changes_nothing(journal: Journal) -> None:
    lease = await started(journal)
    seq = await journal.post("r1", "message", "hi", target=None, sender="ana", at=1.0)
    await journal.commit(lease, Batch(requested=(requested("k0", 0),), timers=(("k0", 5.0),), asks=(new_ask("a0", effect="k0"),)))
    batch = Batch(
        accounts=(AccountLimit(account="", limits={"turns": 4}),),
        requested=(requested("k1", 1), requested("k2", 2)),
        reserved=(Reservation(effect="k1", accounts=("",), usage=Usage(turns=1)), Reservation(effect="k2", accounts=("",), usage=Usage(turns=2))),
        completed=(completed("k0", 0), completed("k1", 1, usage=Usage(model_calls=1))),
        settled=(Settlement(effect="k1", usage=Usage(turns=1)),),
        asks=(new_ask(effect="k2"),),
        asks_closed=(("a0", "expired"),),
        inbox_done=(seq,),
        timers=(("k2", 7.0),),
        timers_done=("k0",),
        events=(event(1), event(2)),
        candidates=({"id": "c1", "sha": "1" * 40},),
        promotions=({"envelope_digest": "f" * 64, "ref": "refs/heads/main", "old": None, "new": "1" * 40},),
        run=RunUpdate(state="running", started_at=3.0),
    )
    await journal.commit(lease, batch)
    before = await everything(journal, "r1")
    await journal.commit(lease, batch)
    assert await everything(journal, "r1") == before
    assert await journal.timers("r1") == {"k2": 7.0}
    assert [ask.ask_id for ask in await journal.asks(run_id="r1")] == ["a1"]
    assert (await journal.get_ask("a0")).closed == "expired"


# ---- events -------------------------------------------------------------------------------------


@case
async def events_are_numbered_without_gaps(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(events=(event(1), event(2, effect="k", data=None))))
    async with refused(ValueError, "a gap between batches"):
        await journal.commit(lease, Batch(requested=(requested("k1", 0),), events=(event(4),)))
    async with refused(ValueError, "a gap within a batch"):
        await journal.commit(lease, Batch(events=(event(3), event(5))))
    assert await journal.effects("r1") == [], "a refused batch leaves nothing"
    await journal.commit(lease, Batch(events=(event(3),)))
    assert await journal.events("r1") == [event(1), event(2, effect="k", data=None), event(3)]
    assert [e.seq for e in await journal.events("r1", after=1)] == [2, 3]
    assert [e.seq for e in await journal.events("r1", limit=2)] == [1, 2]
    assert (await journal.get_run("r1")).last_event == 3


# ---- asks ---------------------------------------------------------------------------------------


@case
async def an_ask_is_answered_once(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), asks=(new_ask(),)))
    (open_ask,) = await journal.asks()
    assert (open_ask.run_id, open_ask.approvers, open_ask.answer, open_ask.answered_at) == ("r1", ("ana", "bo"), None, None)
    record = await journal.answer("a1", "approve", by="ana", channel="cli", at=30.0, note="fine")
    assert (record.answer, record.answered_by, record.answer_channel, record.answered_at, record.note) == ("approve", "ana", "cli", 30.0, "fine")
    for value, who in (("decline", "bo"), ("approve", "ana")):
        async with refused(AlreadyAnswered, f"a second answer {value} by {who}"):
            await journal.answer("a1", value, by=who, channel="cli", at=31.0)
    assert await journal.get_ask("a1") == record
    assert await journal.asks() == [] and await journal.asks(open_only=False) == [record]


@case
async def answers_at_once_decide_once(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), asks=(new_ask(),)))
    tries = (journal.answer("a1", "approve", by=f"p{n}", channel="cli", at=30.0) for n in range(5))
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(outcome, AlreadyAnswered) for outcome in outcomes) == 4


@case
async def a_closed_ask_takes_no_answer_and_an_answered_one_does_not_close(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), asks=(new_ask("a1"), new_ask("a2"))))
    await journal.answer("a2", "approve", by="ana", channel="cli", at=30.0)
    await journal.commit(lease, Batch(asks_closed=(("a1", "expired"), ("a2", "cancelled"))))
    async with refused(AlreadyAnswered, "an answer to a closed question"):
        await journal.answer("a1", "approve", by="ana", channel="cli", at=31.0)
    assert (await journal.get_ask("a1")).answer is None
    assert (await journal.get_ask("a2")).closed is None


@case
async def an_answer_makes_a_parked_run_ready(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), asks=(new_ask(),), run=RunUpdate(state="parked", waiting=[{"on": "ask"}])))
    await journal.release(lease)
    assert await journal.claim_ready(BOB, ttl_s=LONG) == []
    await journal.answer("a1", "approve", by="ana", channel="cli", at=30.0)
    assert [lease.run_id for lease in await journal.claim_ready(BOB, ttl_s=LONG)] == ["r1"]


@case
async def an_answer_that_races_with_the_park_is_not_lost(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), asks=(new_ask(),)))
    await journal.answer("a1", "approve", by="ana", channel="cli", at=30.0)
    await journal.commit(lease, Batch(run=RunUpdate(state="parked", waiting=[{"on": "ask"}], clear=("ready_at",))))
    await journal.release(lease)
    assert len(await journal.claim_ready(BOB, ttl_s=LONG)) == 1


# ---- inbox --------------------------------------------------------------------------------------


@case
async def the_inbox_is_ordered_and_emptied_by_the_journal(journal: Journal) -> None:
    lease = await started(journal)
    first = await journal.post("r1", "message", {"text": "\x00"}, target="worker", sender="ana", at=1.0)
    second = await journal.post("r1", "cancel", None, target=None, sender="bo", at=2.0)
    assert second > first
    items = await journal.inbox("r1")
    assert [(i.seq, i.kind, i.target, i.body, i.sender, i.created_at) for i in items] == [
        (first, "message", "worker", {"text": "\x00"}, "ana", 1.0), (second, "cancel", None, None, "bo", 2.0),
    ]  # fmt: skip
    await journal.commit(lease, Batch(inbox_done=(first,)))
    assert [item.seq for item in await journal.inbox("r1")] == [second]


@case
async def posts_at_once_all_arrive(journal: Journal) -> None:
    await journal.create_run(new_run())
    numbers = await asyncio.gather(*(journal.post("r1", "message", n, target=None, sender="ana", at=1.0) for n in range(10)))
    items = await journal.inbox("r1")
    assert sorted(numbers) == [item.seq for item in items] and len(set(numbers)) == 10
    assert sorted(item.body for item in items) == list(range(10))


@case
async def a_post_makes_a_parked_run_ready(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(run=RunUpdate(state="parked", waiting=[{"on": "message"}])))
    await journal.release(lease)
    await journal.post("r1", "message", "hi", target=None, sender="ana", at=1.0)
    (claimed,) = await journal.claim_ready(BOB, ttl_s=LONG)
    await journal.commit(claimed, Batch(run=RunUpdate(state="parked", clear=("ready_at",))))
    await journal.release(claimed)
    assert await journal.claim_ready(BOB, ttl_s=LONG) == [], "what was there at the claim and left alone does not wake again"


@case
async def a_post_that_races_with_the_park_is_not_lost(journal: Journal) -> None:
    lease = await started(journal)
    await journal.post("r1", "cancel", None, target=None, sender="ana", at=1.0)
    await journal.commit(lease, Batch(run=RunUpdate(state="parked", clear=("ready_at",))))
    await journal.release(lease)
    assert len(await journal.claim_ready(BOB, ttl_s=LONG)) == 1


@case
async def a_journaled_post_does_not_wake_again(journal: Journal) -> None:
    lease = await started(journal)
    seq = await journal.post("r1", "message", "hi", target=None, sender="ana", at=1.0)
    await journal.commit(lease, Batch(inbox_done=(seq,), run=RunUpdate(state="parked", clear=("ready_at",))))
    await journal.release(lease)
    assert await journal.claim_ready(BOB, ttl_s=LONG) == []


# ---- accounts -----------------------------------------------------------------------------------


@case
async def accounts_reserve_settle_and_overrun(journal: Journal) -> None:
    lease = await started(journal)
    limits = (AccountLimit(account="", limits={"usd": "5"}), AccountLimit(account="a", limits={"turns": 4}))
    worst = Usage(usd=Decimal("0.30"), output_tokens=100, turns=1)
    hold = (Reservation(effect="k1", accounts=("a", ""), usage=worst), Reservation(effect="k2", accounts=("",), usage=worst))
    await journal.commit(lease, Batch(accounts=limits, requested=(requested("k1", 0), requested("k2", 1)), reserved=hold))
    root, leaf = await journal.accounts("r1")
    assert (root.account, root.limits, leaf.account, leaf.limits) == ("", {"usd": "5"}, "a", {"turns": 4})
    assert (root.reserved, leaf.reserved, root.used, root.overrun) == (worst + worst, worst, Usage(), Usage())
    really = Usage(usd=Decimal("0.10"), output_tokens=130, turns=1)
    await journal.commit(lease, Batch(settled=(Settlement(effect="k1", usage=really),)))
    root, leaf = await journal.accounts("r1")
    assert root.reserved == worst and leaf.reserved == Usage()
    assert root.used == leaf.used == Usage(usd=Decimal("0.10"), output_tokens=100, turns=1)
    assert root.overrun == leaf.overrun == Usage(output_tokens=30)
    await journal.commit(lease, Batch(accounts=(AccountLimit(account="", limits={"usd": "9"}),)))
    root, _ = await journal.accounts("r1")
    assert root.limits == {"usd": "9"} and root.used == leaf.used, "a topup keeps what was used"


@case
async def a_settlement_counts_once(journal: Journal) -> None:
    lease = await started(journal)
    hold = Reservation(effect="k1", accounts=("",), usage=Usage(turns=2))
    await journal.commit(lease, Batch(accounts=(AccountLimit(account="", limits={}),), requested=(requested("k1", 0),), reserved=(hold,)))
    for turns in (1, 2):
        await journal.commit(lease, Batch(settled=(Settlement(effect="k1", usage=Usage(turns=turns)),)))
    await journal.commit(lease, Batch(reserved=(hold,)))
    (account,) = await journal.accounts("r1")
    assert (account.used, account.reserved) == (Usage(turns=1), Usage()), "neither settled nor reserved twice"


# ---- state --------------------------------------------------------------------------------------

SHARED = StateAddress(reach="project", owner="local:ü\x00/repo", name="findings\x1a")
OWN = StateAddress(reach="run", owner="r1", name="findings")


def state_write(expected: int, **changes: Any) -> StateWrite:
    base = StateWrite(at=SHARED, expected=expected, model_version=1, value={"n": expected + 1}, effect=f"state:{expected}", written_at=40.0)
    return replace(base, **changes)


@case
async def a_state_reads_back_as_it_was_written(journal: Journal) -> None:
    lease = await started(journal)
    assert await journal.state_get(SHARED) is None and await journal.state_history(SHARED) == []
    odd = {"text": "a\x00\ud800", "n": 0.1, "big": 10**30}
    record = await journal.state_put(lease, state_write(0, value=odd, model_version=3, effect="k\x00"))
    assert record is not None and record == await journal.state_get(SHARED)
    assert (record.version, record.model_version, record.value, record.run_id, record.effect, record.written_at) == (1, 3, odd, "r1", "k\x00", 40.0)
    assert await journal.state_get(OWN) is None, "reach, owner and name tell states apart"
    assert await journal.state_get(replace(SHARED, owner="other")) is None


@case
async def a_state_is_written_by_compare_and_swap(journal: Journal) -> None:
    lease = await started(journal)
    other = await started(journal, "r2", BOB)
    assert await journal.state_put(lease, state_write(1)) is None, "nothing is there to replace"
    assert await journal.state_put(lease, state_write(0)) is not None
    assert await journal.state_put(other, state_write(0, value="lost")) is None
    assert await journal.state_put(other, state_write(1, value="second")) is not None
    assert await journal.state_put(lease, state_write(1, value="late", effect="late")) is None
    assert await journal.state_put(lease, state_write(7)) is None
    assert [(r.version, r.value, r.run_id) for r in await journal.state_history(SHARED)] == [(1, {"n": 1}, "r1"), (2, "second", "r2")]
    assert [r.version for r in await journal.state_history(SHARED, after=1)] == [2]
    assert [r.version for r in await journal.state_history(SHARED, limit=1)] == [1]


@case
async def the_same_state_write_twice_is_one(journal: Journal) -> None:
    lease = await started(journal)
    other = await started(journal, "r2", BOB)
    first = await journal.state_put(lease, state_write(0))
    assert first is not None and await journal.state_put(lease, state_write(0)) == first
    assert await journal.state_put(other, state_write(0)) is None, "another run's effect of the same key is another write"
    await journal.state_put(other, state_write(1))
    assert await journal.state_put(lease, state_write(0)) == first, "also after others wrote"
    assert [record.version for record in await journal.state_history(SHARED)] == [1, 2]


@case
async def state_writes_at_once_lose_nothing(journal: Journal) -> None:
    leases = [await started(journal, f"r{number}", replace(ALICE, worker=f"w{number}")) for number in range(4)]

    async def add(lease: Lease) -> None:
        for turn in range(5):
            while True:
                present = await journal.state_get(SHARED)
                version, value = (present.version, present.value) if present is not None else (0, 0)
                if await journal.state_put(lease, state_write(version, value=value + 1, effect=f"{lease.run_id}.{turn}")) is not None:
                    break

    await asyncio.gather(*map(add, leases))
    last = await journal.state_get(SHARED)
    assert last is not None and (last.version, last.value) == (20, 20)
    assert [record.value for record in await journal.state_history(SHARED)] == list(range(1, 21))


@case
async def a_stale_epoch_writes_no_state(journal: Journal) -> None:
    old = await started(journal)
    assert await journal.claim("r1", BOB, ttl_s=LONG, replace_epoch=old.epoch) is not None
    async with refused(LeaseLost, "a state write of a stale epoch"):
        await journal.state_put(old, state_write(0))
    assert await journal.state_get(SHARED) is None


@case
async def a_state_change_makes_a_parked_run_ready(journal: Journal) -> None:
    waiter = await started(journal, "r1")
    writer = await started(journal, "r2", BOB)
    await journal.state_put(writer, state_write(0))
    waits = (StateWait(at=SHARED, version=1), StateWait(at=OWN, version=0))
    park = Batch(run=RunUpdate(state="parked", waiting=[{"on": "state"}]), state_waits=waits)
    await journal.commit(waiter, park)
    await journal.commit(waiter, park)
    await journal.release(waiter)
    await journal.state_put(writer, state_write(0, at=replace(SHARED, name="another")))
    assert await journal.claim_ready(ALICE, ttl_s=LONG) == []
    await journal.state_put(writer, state_write(1))
    (lease,) = await journal.claim_ready(ALICE, ttl_s=LONG)
    assert lease.run_id == "r1"
    await journal.commit(lease, Batch(run=RunUpdate(state="running", clear=("ready_at", "waiting"))))
    await journal.commit(lease, Batch(run=RunUpdate(state="parked", waiting=[{"on": "asks"}])))
    await journal.release(lease)
    await journal.state_put(writer, state_write(2))
    assert await journal.claim_ready(ALICE, ttl_s=LONG) == [], "it no longer waits for the state"


@case
async def a_state_change_that_races_with_the_park_is_not_lost(journal: Journal) -> None:
    waiter = await started(journal, "r1")
    writer = await started(journal, "r2", BOB)
    await journal.state_put(writer, state_write(0))
    update = RunUpdate(state="parked", waiting=[{"on": "state"}], clear=("ready_at",))
    await journal.commit(waiter, Batch(run=update, state_waits=(StateWait(at=SHARED, version=0),)))
    await journal.release(waiter)
    assert len(await journal.claim_ready(ALICE, ttl_s=LONG)) == 1


@case
async def parks_and_state_changes_at_once_lose_no_wake_up(journal: Journal) -> None:
    writer = await started(journal, "w", BOB)
    waiters = [await started(journal, f"r{number}", replace(ALICE, worker=f"w{number}")) for number in range(8)]

    async def park(lease: Lease) -> None:
        await journal.commit(lease, Batch(run=RunUpdate(state="parked"), state_waits=(StateWait(at=SHARED, version=0),)))

    await asyncio.gather(*map(park, waiters[:4]), journal.state_put(writer, state_write(0)), *map(park, waiters[4:]))
    assert all([(await journal.get_run(lease.run_id)).ready_at is not None for lease in waiters])


# ---- epochs -------------------------------------------------------------------------------------


@case
async def a_finished_epoch_leaves_the_effects_with_all_below(journal: Journal) -> None:
    lease = await started(journal)
    spent = Usage(model_calls=1, input_tokens=3)
    rows = (
        requested("loop", 0), requested("epoch.0", 0, parent="loop"), requested("agent", 1, parent="loop"),
        requested("agent>model", None, parent="agent"), requested("other", 1), requested("other>model", None, parent="other"),
    )  # fmt: skip
    await journal.commit(lease, Batch(requested=rows))
    turn = Batch(
        requested=(requested("last", 2, parent="loop"), requested("epoch.1", 0, parent="loop")),
        completed=(completed("agent>model", None, usage=spent), completed("agent", 2), completed("last", 3), completed("epoch.1", 4)),
        archived=("epoch.0", "agent", "last"),
    )
    await journal.commit(lease, turn)
    before = await everything(journal, "r1")
    await journal.commit(lease, turn)
    assert await everything(journal, "r1") == before
    assert {row.key for row in await journal.effects("r1")} == {"loop", "other", "other>model", "epoch.1"}
    archive = await journal.archive("r1")
    assert {row.key: row.status for row in archive} == {"epoch.0": "requested", "agent": "ok", "agent>model": "ok", "last": "ok"}
    assert await journal.archive("r1", after=1, limit=1) == archive[1:2]
    assert await journal.usage("r1") == spent, "what a finished epoch used still counts"
    assert await journal.archive("r2") == []


@case
async def what_finished_epochs_used_of_accounts_still_counts(journal: Journal) -> None:
    lease = await started(journal)
    worst = Usage(usd=Decimal("0.30"), output_tokens=100, turns=1, sandbox_s=2.5)
    limits = (AccountLimit(account="", limits={"usd": "5"}), AccountLimit(account="a", limits={"usd": "2"}))
    await journal.commit(lease, Batch(accounts=limits))
    for n in range(4):
        agent, call, free = f"g{n}", f"g{n}>model", f"f{n}"
        rows = (requested(agent, n), requested(call, None, parent=agent), requested(free, n + 10))
        hold = (Reservation(effect=call, accounts=("a", ""), usage=worst), Reservation(effect=free, accounts=("",), usage=worst))
        await journal.commit(lease, Batch(requested=rows, reserved=hold))
        really = Usage(usd=Decimal("0.1") * (n + 1), output_tokens=90, turns=1, sandbox_s=0.5)
        done = (completed(call, None), completed(agent, 2 * n), completed(free, 2 * n + 1))
        await journal.commit(lease, Batch(completed=done, settled=(Settlement(effect=call, usage=really), Settlement(effect=free, usage=Usage()))))
        before = await journal.accounts("r1")
        await journal.commit(lease, Batch(archived=(agent, free)))
        await journal.commit(lease, Batch(archived=(agent, free)))
        assert await journal.accounts("r1") == before, n
    root, leaf = await journal.accounts("r1")
    assert root.used == leaf.used == Usage(usd=Decimal("0.90"), output_tokens=360, turns=4, sandbox_s=2.0)
    assert root.overrun == leaf.overrun == Usage(usd=Decimal("0.10"))


# ---- timers and wake-ups -------------------------------------------------------------------------


@case
async def timers_stay_until_they_are_done(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(timers=(("k1", 5.25), ("k2", 6.0))))
    await journal.commit(lease, Batch(timers_done=("k1",)))
    assert await journal.timers("r1") == {"k2": 6.0}
    assert await journal.timers("r2") == {}


@case
async def listeners_hear_of_events_posts_and_answers(journal: Journal) -> None:
    lease = await started(journal)
    await journal.commit(lease, Batch(requested=(requested("k1", 0),), asks=(new_ask(),)))
    seq = 0

    async def write() -> None:
        nonlocal seq
        seq += 1
        await journal.commit(lease, Batch(events=(event(seq),)))

    async def post() -> None:
        await journal.post("r1", "message", "hi", target=None, sender="ana", at=1.0)

    for act in (write, post):
        assert await _heard(journal, act) == "r1"


async def _heard(journal: Journal, act: Callable[[], Awaitable[None]]) -> str:
    """What a fresh listener hears first. A wake-up is a hint: it may miss what happens while it connects, so act again."""
    news = asyncio.ensure_future(anext(aiter(journal.listen())))
    for _ in range(200):
        await act()
        done, _ = await asyncio.wait({news}, timeout=0.05)
        if done:
            return news.result()
    news.cancel()
    raise AssertionError("a listener heard nothing")
