"""Forks: a new run that begins with the results another had at some point (``capataz fork RUN --at KEY``).

The taken results are generation 0 of the new run; its program runs in generation 1 and merges them by key, like edited
sources do. The new run's own kernel copies them, so a crash on the way loses nothing and no run starts without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from capataz.contracts.errors import NotFound, UsageError
from capataz.contracts.journal import (
    AccountLimit,
    Batch,
    EffectCompleted,
    EffectRequested,
    EffectRow,
    Journal,
    Lease,
    NewRun,
    RunRecord,
    RunUpdate,
)
from capataz.vm.seeds import origin

CHUNK = 400
_NOT_INHERITED = frozenset({"accept_orphans", "fork", "origin"})


def find_row(rows: Sequence[EffectRow], key: str) -> EffectRow:
    """The effect with this key, or the only one whose key begins with it. Raises ``NotFound``, ``UsageError``."""
    found = [row for row in rows if row.key == key]
    found = found or [row for row in rows if row.key.startswith(key) and (">" in key or ">" not in row.key)]
    if not found:
        raise NotFound(f"this run has no effect {key!r}; `capataz tree RUN --json` shows the keys")
    if len(found) > 1:
        raise UsageError(f"{len(found)} effects begin with {key!r}: {', '.join(row.key for row in found[:3])}; give one key in full")
    if found[0].ended_at is None:
        raise UsageError(f"{found[0].key} has no result yet; fork at one that has ended")
    return found[0]


def inherited(rows: Sequence[EffectRow], at: EffectRow) -> list[EffectRow]:
    """The good results up to and including ``at``: by delivery order in its own program, elsewhere by the time they ended.
    What belongs to a finished agent or child comes with it."""
    by_key = {row.key: row for row in rows}
    return [row for row in rows if _taken(row, at, by_key)]


def _taken(row: EffectRow, at: EffectRow, by_key: dict[str, EffectRow]) -> bool:
    if row.status != "ok":
        return False
    above = by_key.get(row.parent or "")
    if above is not None and above.kind != "loop" and _taken(above, at, by_key):
        return True
    if row.parent == at.parent and row.request_no is not None and at.request_no is not None:
        return row.delivery_no is not None and at.delivery_no is not None and row.delivery_no <= at.delivery_no
    return row.ended_at is not None and at.ended_at is not None and row.ended_at <= at.ended_at


def forked_run(parent: RunRecord, at: EffectRow, *, run_id: str, now: float) -> NewRun:
    """The new run; its options tell where its results come from, and what its chance and clock begin with."""
    seed, started = origin(parent)
    options: dict[str, Any] = {k: v for k, v in (parent.options or {}).items() if k not in _NOT_INHERITED}
    options["fork"] = {"run": parent.run_id, "generation": at.generation, "at": at.key}
    options["origin"] = {"seed": seed, "now": started}
    return NewRun(
        run_id=run_id, program=parent.program, source_digest=parent.source_digest, input=parent.input, options=options,
        parent_run=parent.run_id, tenant=parent.tenant, created_at=now, repository=parent.repository,
    )


async def take_over(journal: Journal, lease: Lease, record: RunRecord) -> RunRecord:
    """Copies the results of a fresh fork into its generation 0 and opens generation 1. Again after a crash: the same."""
    fork = (record.options or {}).get("fork")
    if fork is None or record.generation > 0:
        return record
    rows = await journal.effects(fork["run"], generation=fork["generation"])
    taken = inherited(rows, find_row(rows, fork["at"]))
    for first in range(0, len(taken), CHUNK):
        await journal.commit(lease, _batch(taken[first : first + CHUNK]))
    await journal.commit(lease, Batch(run=RunUpdate(generation=1)))
    return replace(record, generation=1)


def _batch(rows: list[EffectRow]) -> Batch:
    return Batch(
        accounts=tuple(AccountLimit(account=row.scope, limits=row.input) for row in rows if row.kind == "budget"),
        requested=tuple(
            EffectRequested(
                key=row.key, parent=row.parent, scope=row.scope, kind=row.kind, name=row.name, input_digest=row.input_digest,
                ordinal=row.ordinal, request_no=row.request_no, input=row.input, started_at=row.started_at,
                reused_from=row.generation, tree=row.start_tree,
            )
            for row in rows
        ),
        completed=tuple(
            EffectCompleted(
                key=row.key, status="ok", delivery_no=row.delivery_no, result=row.result, usage=row.usage,
                ended_at=row.ended_at or row.started_at, tree=row.end_tree, repeated=row.repeated,
            )
            for row in rows
        ),
    )
