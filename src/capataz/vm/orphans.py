"""Orphans: results of earlier generations that the program no longer asks for.

One with an external effect (a promotion, a ``step(idempotent=False)``) has changed the world for a program that now says
otherwise, so a person decides before the new generation promotes or ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import digest
from capataz.contracts.errors import AskDeclined
from capataz.contracts.journal import Batch, EffectCompleted, EffectRequested, EffectRow, NewAsk, RunRecord
from capataz.vm.committer import Part
from capataz.vm.keys import Identity
from capataz.vm.large import LargeValues

if TYPE_CHECKING:
    from capataz.vm.effect import Effect
    from capataz.vm.run import Run

ASK = "orphans"
"""Name of the kernel's own question (an ``ask`` without a request number)."""
_BOOKKEEPING = frozenset({"control", "now", "budget", "sleep", "loop", "epoch"})
_SHOWN = 5


async def is_external(row: EffectRow, large: LargeValues) -> bool:
    """Whether the effect reached out of the run in a way that a second one would repeat."""
    if row.kind == "coding.promote":
        return True
    if row.kind != "step":
        return False
    kept = await large.inward(row.input)
    return isinstance(kept, dict) and kept.get("idempotent") is False


async def orphans(rows: Iterable[EffectRow], earlier: Sequence[EffectRow], large: LargeValues) -> list[EffectRow]:
    """Rows of earlier generations (oldest first) that ``rows``, those of the newest, do not take up; in their old order.

    What a child did is covered when the child is reused whole, and told by the child when that is an orphan; an external
    effect is always told, also when it was only under way.
    """
    now = {row.key: row for row in rows}
    old = {row.key: row for row in earlier if row.status in ("ok", "requested")}
    found: dict[str, EffectRow] = {}
    for row in old.values():
        if row.request_no is None or row.kind in _BOOKKEEPING or _covered(row, now, old):
            continue
        external = await is_external(row, large)
        if external or (row.status == "ok" and row.parent not in found):
            found[row.key] = row
    return list(found.values())


def _covered(row: EffectRow, now: dict[str, EffectRow], old: dict[str, EffectRow]) -> bool:
    if row.key in now:
        return True
    parent = row.parent
    while parent is not None:
        taken = now.get(parent)
        if taken is not None and taken.reused_from is not None and taken.kind != "loop":
            return True  # a loop that is taken over is entered again, its epoch has keys of its own
        above = old.get(parent)
        parent = above.parent if above is not None else None
    return False


def decision_open(rows: Iterable[EffectRow]) -> bool:
    """Whether the kernel has asked about orphans in this generation."""
    return any(row.kind == "ask" and row.name == ASK and row.request_no is None for row in rows)


def to_show(run: RunRecord, rows: Iterable[EffectRow]) -> bool:
    """Whether orphans are known: the program of a later generation has come to its end, or to the question about them."""
    return run.generation > 0 and (run.state == "completed" or decision_open(rows))


class OrphanGate:
    """``await gate.pass_()`` before the end, with the effect before a promotion. Raises ``AskDeclined``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = asyncio.Lock()

    async def pass_(self, effect: Effect | None = None) -> None:
        run = self._run
        if run.record.generation == 0 or run.options.get("accept_orphans") == run.record.generation:
            return
        async with self._lock:
            lost = await self._external()
            if lost and not await self._accepted(lost, effect):
                raise AskDeclined(f"{_names(lost)} stay without a program that asks for them, and this was not accepted")

    async def _external(self) -> list[EffectRow]:
        run = self._run
        earlier = [row for row in run.history.earlier if await is_external(row, run.large)]
        if not earlier:
            return []
        await run.committer.flush()
        rows = await run.ports.journal.effects(run.run_id, generation=run.record.generation)
        lost = await orphans(rows, run.history.earlier, run.large)
        return [row for row in lost if await is_external(row, run.large)]

    async def _accepted(self, lost: list[EffectRow], effect: Effect | None) -> bool:
        run = self._run
        keys = [row.key for row in lost]
        identity = Identity("", "ask", ASK, digest(keys), 0)
        row = run.history.rows.get(identity.key)
        if row is not None and row.status == "ok":
            return row.result["value"] == "approve"
        ask_id = "a" + digest([run.run_id, run.record.generation, identity.key])[:15]
        if row is None:
            await self._open(identity, ask_id, lost)
        wait: dict[str, Any] = {"on": "asks", "ask": ask_id, "due": None, "orphans": keys}
        with run.waiting_for(wait, effect):
            record = await run.inbox.answer(ask_id, None)
        assert record is not None
        answer = {"value": record.answer, "by": record.answered_by, "channel": record.answer_channel}
        done = EffectCompleted(key=identity.key, status="ok", delivery_no=None, result=answer, ended_at=run.now())
        await run.committer.durable(Part(Batch(completed=(done,)), (("ask.answered", identity.key, {"ask": ask_id, **answer}),)))
        return record.answer == "approve"

    async def _open(self, identity: Identity, ask_id: str, lost: list[EffectRow]) -> None:
        run, at = self._run, self._run.now()
        question = f"The program no longer asks for {_names(lost)}, which took effect outside. Go on without them?"
        requested = EffectRequested(
            key=identity.key, parent=None, scope="", kind="ask", name=ASK, input_digest=identity.input_digest, ordinal=0,
            request_no=None, input={"question": question}, started_at=at,
        )
        ask = NewAsk(
            ask_id=ask_id, effect=identity.key, kind="approval", question=question, options=["approve", "decline"], schema=None,
            context={"orphans": [{"key": row.key, "kind": row.kind, "name": row.name, "status": row.status} for row in lost]},
            approvers=(), channel=None, risk="high", binding=None, opened_at=at, expires_at=None,
        )
        opened = {"ask": ask_id, "kind": "approval", "question": question, "binding": None}
        run.ports.faults.reach("ask.before")
        await run.committer.durable(Part(Batch(requested=(requested,), asks=(ask,)), (("ask.opened", identity.key, opened),)))
        run.ports.faults.reach("ask.after")


def _names(lost: list[EffectRow]) -> str:
    shown = ", ".join(f"{row.kind} {row.name}".strip() for row in lost[:_SHOWN])
    return shown + (f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else "")
