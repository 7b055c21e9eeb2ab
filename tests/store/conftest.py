"""One embedded server for the room's tests; each test gets an empty store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from capataz.store.admin import TABLES
from capataz.store.embedded.launcher import ensure_server, stop_server
from capataz.store.store import Store, open_store


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a running server, under a path with a space and an umlaut."""
    place = tmp_path_factory.mktemp("höme of it")
    ensure_server(place)
    yield place
    stop_server(place)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an empty schema, its server stopped: copied where a test needs a server of its own."""
    place = tmp_path_factory.mktemp("template")

    async def make() -> None:
        await (await open_store(place)).close()

    asyncio.run(make())
    stop_server(place)
    return place


@pytest.fixture
def own_home(template: Path, tmp_path: Path) -> Iterator[Path]:
    """A home of the test's own; no server runs yet, and none is left after it."""
    place = tmp_path / "h"
    shutil.copytree(template, place, ignore=shutil.ignore_patterns("*.lock", "server.*", "run"))
    (place / "postgres").chmod(0o700)
    yield place
    stop_server(place)


@pytest.fixture
async def store(home: Path) -> AsyncIterator[Store]:
    opened = await open_store(home)
    async with opened.database.connection() as connection:
        for table in reversed(TABLES):         # a TRUNCATE syncs each of their files
            await connection.execute(f"DELETE FROM {table}".encode())
    yield opened
    await opened.close()
