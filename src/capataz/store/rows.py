"""Rows of the database as records of the journal port. Columns come in the order that the ``.sql`` blocks select."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from capataz.contracts.journal import (
    AccountRecord,
    AskRecord,
    EffectRow,
    Holder,
    InboxItem,
    Lease,
    NewEvent,
    RunRecord,
    StateRecord,
    Usage,
)
from capataz.store.values import plain, plain_or_none

Row = tuple[Any, ...]
_NOTHING = Usage()
_USAGE = Usage.__slots__
_METERED = ("usd", "input_tokens", "output_tokens")


def usage(data: dict[str, Any] | None) -> Usage:
    return Usage.from_json(data) if data else _NOTHING


def run(row: Row) -> RunRecord:
    return RunRecord(
        run_id=row[0],
        program=plain(row[1]),
        state=row[2],
        outcome=plain_or_none(row[3]),
        reason=row[4],
        input=row[5],
        options=row[6],
        result=row[7],
        source_digest=row[8],
        generation=row[9],
        parent_run=row[10],
        tenant=plain(row[11]),
        repository=plain_or_none(row[12]),
        created_at=row[13],
        started_at=row[14],
        ended_at=row[15],
        ready_at=row[16],
        waiting=row[17],
        last_event=row[18],
    )


def lease(row: Row) -> Lease:
    holder = Holder(worker=plain(row[2]), boot=plain(row[3]), pid=row[4], pid_start=row[5])
    return Lease(run_id=row[0], epoch=row[1], holder=holder, expires_at=row[6])


def effect(row: Row) -> EffectRow:
    return EffectRow(
        generation=row[0],
        key=plain(row[1]),
        parent=plain_or_none(row[2]),
        scope=plain(row[3]),
        kind=plain(row[4]),
        name=plain(row[5]),
        input_digest=row[6],
        ordinal=row[7],
        request_no=row[8],
        delivery_no=row[9],
        status=row[10],
        input=row[11],
        result=row[12],
        error=row[13],
        usage=usage(row[14]),
        started_at=row[15],
        ended_at=row[16],
        repeated=row[17],
        reused_from=row[18],
        start_tree=row[19],
        end_tree=row[20],
        worker=plain(row[21]),
        epoch=row[22],
    )


def event(row: Row) -> NewEvent:
    return NewEvent(seq=row[0], type=plain(row[1]), at=row[2], effect=plain_or_none(row[3]), data=row[4])


def ask(row: Row) -> AskRecord:
    return AskRecord(
        ask_id=plain(row[0]),
        run_id=row[1],
        effect=plain(row[2]),
        kind=plain(row[3]),
        question=plain(row[4]),
        options=row[5],
        schema=row[6],
        context=row[7],
        approvers=tuple(row[8]),
        channel=plain_or_none(row[9]),
        risk=plain_or_none(row[10]),
        binding=plain_or_none(row[11]),
        opened_at=row[12],
        expires_at=row[13],
        answer=row[14],
        answered_by=plain_or_none(row[15]),
        answered_at=row[16],
        answer_channel=plain_or_none(row[17]),
        note=plain_or_none(row[18]),
        closed=plain_or_none(row[19]),
    )


def inbox_item(row: Row) -> InboxItem:
    return InboxItem(seq=row[0], kind=row[1], target=plain_or_none(row[2]), body=row[3], sender=plain(row[4]), created_at=row[5])


def state(row: Row) -> StateRecord:
    return StateRecord(version=row[0], model_version=row[1], value=row[2], run_id=row[3], effect=plain(row[4]), written_at=row[5])


def total(parts: Iterable[dict[str, Any]]) -> Usage:
    """Sum of usages as stored; money stays exact."""
    sums: dict[str, Any] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, 0) + (Decimal(amount) if name == "usd" else amount)
    return Usage(**{name: sums[name] for name in _USAGE if name in sums})


def accounts(limits: list[Row], reservations: list[Row]) -> list[AccountRecord]:
    """An account for each limit and each account that something was reserved on, by name."""
    found: dict[str, list[Row]] = {plain(row[0]): [] for row in limits}
    for row in reservations:
        for name in row[0]:
            found.setdefault(plain(name), []).append(row)
    known = {plain(row[0]): row[1] for row in limits}
    return [_account(name, known.get(name), rows) for name, rows in sorted(found.items())]


def _account(name: str, limits: Any, rows: list[Row]) -> AccountRecord:
    settled = [(usage(row[1]), usage(row[2])) for row in rows if row[2] is not None]
    parts = [_split(reserved, really) for reserved, really in settled]
    return AccountRecord(
        account=name,
        limits=limits,
        used=_add([used for used, _ in parts]),
        reserved=_add([usage(row[1]) for row in rows if row[2] is None]),
        overrun=_add([over for _, over in parts]),
    )


def _split(reserved: Usage, really: Usage) -> tuple[Usage, Usage]:
    """What a settlement uses of its reserve, and what goes beyond it, of what is reserved by amount. Their sum is what was
    really used."""
    over = {name: max(getattr(really, name) - getattr(reserved, name), 0) for name in _METERED}
    return replace(really, **{name: getattr(really, name) - excess for name, excess in over.items()}), Usage(**over)


def _add(parts: list[Usage]) -> Usage:
    return sum(parts, _NOTHING)
