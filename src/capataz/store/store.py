"""Opening the store: database and blobs together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.blobs import Blobs
from capataz.contracts.faults import Faults
from capataz.contracts.journal import Journal
from capataz.store.blobs import open_blobs
from capataz.store.connection import Database, Source
from capataz.store.journal import PgJournal
from capataz.store.schema import ensure_schema


@dataclass(frozen=True, slots=True)
class Store:
    journal: Journal
    blobs: Blobs
    database: Database

    async def close(self) -> None:
        """Closes connections; a shared embedded server goes on running."""
        await self.journal.close()
        await self.blobs.close()


async def open_store(home: Path, database_url: str | None = None, blob_url: str | None = None, *, faults: Faults | None = None) -> Store:
    """The store of a home, or of a PostgreSQL and a blob store by URL. Starts the embedded server when none answers, and
    migrates. Raises ``StoreUnavailable`` or ``IncompatibleStore``, one line with the cure."""
    blobs = open_blobs(home, blob_url, faults)
    database = Database(Source(home, database_url))
    try:
        await database.open()
        await ensure_schema(database)
    except BaseException:
        await database.close()
        raise
    return Store(PgJournal(database), blobs, database)
