"""One warm zygote for all tests of the program side; every test gets fresh processes from it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from capataz.vm.zygote import Zygote


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "program" and isinstance(item, pytest_asyncio.plugin.PytestAsyncioFunction):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def zygote() -> AsyncIterator[Zygote]:
    started = await Zygote.start()
    yield started
    await started.close()
