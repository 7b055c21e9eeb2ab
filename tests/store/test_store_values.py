"""Any canonical JSON, and any text, comes back from the database exactly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capataz.contracts.errors import ValueNotSerializable
from capataz.contracts.journal import Batch, Lease
from capataz.store import values
from capataz.store.store import Store
from capataz.testing.journal_conformance import completed, event, new_run, requested, started

TEXT = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(["\x00", "\x1a0000", "\\u0000", "\ud800", "a\x1a"])
NUMBERS = st.integers() | st.integers(min_value=-(10**40), max_value=10**40) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12)


@given(TEXT)
def test_text_is_escaped_reversibly(text: str) -> None:
    stored = values.text(text)
    assert values.plain(stored) == text
    assert "\x00" not in stored
    stored.encode("utf-8")


async def test_any_json_round_trips(store: Store) -> None:
    lease = await started(store.journal)
    sent: list[Any] = []

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(JSON)
    def collect(value: Any) -> None:
        sent.append(value)

    collect()
    await _write(store, lease, sent)
    rows = await store.journal.effects("r1")
    assert [repr(row.result) for row in rows] == [repr(value) for value in sent]
    assert [repr(row.input) for row in rows] == [repr(value) for value in sent]
    assert [repr(e.data) for e in await store.journal.events("r1")] == [repr(value) for value in sent]


async def _write(store: Store, lease: Lease, sent: list[Any]) -> None:
    new = tuple(requested(f"k{n}", n, input=value) for n, value in enumerate(sent))
    done = tuple(completed(f"k{n}", n, result=value) for n, value in enumerate(sent))
    await store.journal.commit(lease, Batch(requested=new, completed=done, events=tuple(event(n + 1, data=v) for n, v in enumerate(sent))))


async def test_odd_names_round_trip(store: Store) -> None:
    odd = "n\x00\x1a\ud800ü"
    await store.journal.create_run(new_run(program=odd, repository=odd, tenant=odd))
    run = await store.journal.get_run("r1")
    assert (run.program, run.repository, run.tenant) == (odd, odd, odd)
    await store.journal.post("r1", "message", odd, target=odd, sender=odd, at=1.0)
    (item,) = await store.journal.inbox("r1")
    assert (item.target, item.sender, item.body) == (odd, odd, odd)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], object(), {"a": {object()}}])
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueNotSerializable):
        values.dump(value)


def test_words_that_look_like_nan_are_kept() -> None:
    assert values.load((values.dump(["NaN", "Infinity"]) or "").encode()) == ["NaN", "Infinity"]
