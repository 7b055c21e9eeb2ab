"""A ``Batch`` as the one JSON document that ``capataz_commit`` takes. Field names are those in its SQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.journal import (
    AccountLimit,
    Batch,
    EffectCompleted,
    EffectRequested,
    NewAsk,
    NewEvent,
    Reservation,
    RunUpdate,
    Settlement,
    StateWait,
    Usage,
)
from capataz.store.values import dump, present, text

_NOTHING = Usage()
_FIELDS = [(name, getattr(_NOTHING, name)) for name in Usage.__slots__]


def encode(batch: Batch, *, quiet: bool = False) -> bytes:
    """``quiet``: nobody is told of the events. Raises ``ValueError`` for events that are not consecutive: a mistake of the writer, never stored."""
    _check_consecutive(batch.events)
    document: dict[str, Any] = {name: [encoder(item) for item in items] for name, encoder in _SECTIONS.items() if (items := getattr(batch, name))}
    if batch.run is not None:
        document["run"] = _run(batch.run)
    if quiet:
        document["quiet"] = True
    return to_json(document)


def _check_consecutive(events: tuple[NewEvent, ...]) -> None:
    if any(later.seq != earlier.seq + 1 for earlier, later in itertools.pairwise(events)) or (events and events[0].seq < 1):
        raise ValueError(f"events of a batch must be numbered without gaps, not {[event.seq for event in events]}")


def usage(value: Usage) -> str | None:
    """Only what differs from nothing."""
    if value == _NOTHING:
        return None
    fields = {name: amount for name, nothing in _FIELDS if (amount := getattr(value, name)) != nothing}
    return to_json(fields).decode()            # money as a string


def _account(item: AccountLimit) -> dict[str, Any]:
    return present(account=text(item.account), limits=dump(item.limits))


def _requested(item: EffectRequested) -> dict[str, Any]:
    return present(
        key=text(item.key),
        parent=text(item.parent),
        scope=text(item.scope),
        kind=text(item.kind),
        name=text(item.name),
        digest=item.input_digest,
        ordinal=item.ordinal,
        no=item.request_no,
        input=dump(item.input),
        at=item.started_at,
        reused=item.reused_from,
        tree=item.tree,
    )


def _reserved(item: Reservation) -> dict[str, Any]:
    return {"effect": text(item.effect), "accounts": [text(a) for a in item.accounts], "usage": usage(item.usage) or "{}"}


def _completed(item: EffectCompleted) -> dict[str, Any]:
    return present(
        key=text(item.key),
        status=item.status,
        no=item.delivery_no,
        result=dump(item.result),
        error=dump(item.error),
        usage=usage(item.usage),
        cost=str(item.usage.usd),
        at=item.ended_at,
        tree=item.tree,
        repeated=item.repeated,
    )


def _settled(item: Settlement) -> dict[str, Any]:
    return {"effect": text(item.effect), "usage": usage(item.usage) or "{}"}


def _ask(item: NewAsk) -> dict[str, Any]:
    return present(
        id=text(item.ask_id),
        effect=text(item.effect),
        kind=text(item.kind),
        question=text(item.question),
        options=dump(item.options),
        schema=dump(item.schema),
        context=dump(item.context),
        approvers=dump(list(item.approvers)),
        channel=text(item.channel),
        risk=text(item.risk),
        binding=text(item.binding),
        opened=item.opened_at,
        expires=item.expires_at,
    )


def _closed(item: tuple[str, str]) -> dict[str, Any]:
    return {"id": text(item[0]), "why": text(item[1])}


def _timer(item: tuple[str, float]) -> dict[str, Any]:
    return {"effect": text(item[0]), "due": item[1]}


def _event(item: NewEvent) -> dict[str, Any]:
    return present(seq=item.seq, type=text(item.type), at=item.at, effect=text(item.effect), data=dump(item.data))


def _candidate(item: JsonValue) -> dict[str, Any]:
    return present(id=text(str(item.get("id") or digest(item))), sha=item.get("sha"), record=dump(item))


def _promotion(item: JsonValue) -> dict[str, Any]:
    envelope = item.get("envelope_digest") or digest(item)
    return present(envelope=envelope, ref=text(item.get("ref") or ""), old=item.get("old"), new=item.get("new"), record=dump(item))


def _state_wait(item: StateWait) -> dict[str, Any]:
    return {"reach": item.at.reach, "owner": text(item.at.owner), "name": text(item.at.name), "version": item.version}


def _run(item: RunUpdate) -> dict[str, Any]:
    fields = present(
        state=item.state,
        outcome=text(item.outcome),
        reason=dump(item.reason),
        result=dump(item.result),
        options=dump(item.options),
        source_digest=item.source_digest,
        generation=item.generation,
        started_at=item.started_at,
        ended_at=item.ended_at,
        ready_at=item.ready_at,
        waiting=dump(item.waiting),
    )
    return fields | ({"clear": list(item.clear)} if item.clear else {})


_SECTIONS: dict[str, Callable[[Any], Any]] = {
    "accounts": _account,
    "requested": _requested,
    "reserved": _reserved,
    "completed": _completed,
    "settled": _settled,
    "asks": _ask,
    "asks_closed": _closed,
    "inbox_done": int,
    "timers": _timer,
    "timers_done": text,
    "events": _event,
    "candidates": _candidate,
    "promotions": _promotion,
    "archived": text,
    "state_waits": _state_wait,
}
