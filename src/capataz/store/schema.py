"""The schema of an open database: one query when it is up to date."""

from __future__ import annotations

import asyncio

import psycopg

from capataz.store.connection import Connection, Database
from capataz.store.migrations import apply


async def ensure_schema(database: Database) -> None:
    """Brings an empty or older database to this code's schema. Raises ``IncompatibleStore`` for a newer one. Processes that
    do it at once wait for each other; last release's code goes on working meanwhile."""
    version = await database.run(version_of)
    if version == apply.HEAD:
        return
    if version is None:
        await database.run(_create)
        version = await database.run(version_of)
    if version is not None and version != apply.HEAD:
        apply.check_known(version)
        await asyncio.to_thread(apply.upgrade, database.source.parts)


async def version_of(connection: Connection) -> str | None:
    """The stamped version; None for a database without our tables."""
    try:
        row = await (await connection.execute(f"SELECT version_num FROM {apply.VERSION_TABLE}".encode())).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return row[0] if row else None


async def _create(connection: Connection) -> None:
    """The full schema in one transaction: faster than all revisions one by one, with the same result (tested)."""
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({apply.LOCK})".encode())
        row = await (await connection.execute(b"SELECT to_regclass(%s)", [apply.VERSION_TABLE])).fetchone()
        if row and row[0] is None:
            await connection.execute(apply.schema_sql().encode())
