"""Both journals keep the port's promises."""

from __future__ import annotations

import pytest

from capataz.contracts.journal import Journal
from capataz.store.store import Store
from capataz.testing.journal_conformance import CASES, Case
from capataz.testing.memory_journal import MemoryJournal

NAMED = [pytest.param(case, id=case.__name__) for case in CASES]


@pytest.mark.parametrize("case", NAMED)
async def test_postgres(store: Store, case: Case) -> None:
    async def factory() -> Journal:
        return store.journal

    await case(factory)


@pytest.mark.parametrize("case", NAMED)
async def test_memory(case: Case) -> None:
    async def factory() -> Journal:
        return MemoryJournal()

    await case(factory)
