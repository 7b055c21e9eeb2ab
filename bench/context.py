"""What every suite gets: sizes, a place for files, and the one PostgreSQL server of the whole run."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from capataz.store.embedded import launcher

ROOT = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Context:
    """``quick``: tiny sizes, to see that everything runs; the figures then mean little."""

    folder: Path
    quick: bool
    say: Any = print
    _databases: set[str] = field(default_factory=set[str])

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @property
    def home(self) -> Path:
        """Of the server, and of Capataz."""
        return self.folder / "home"

    def url(self, database: str) -> str:
        """A libpq URL of a database on the run's server, made when it is missing. Every contestant has its own."""
        address = launcher.ensure_server(self.home)
        if database not in self._databases:
            asyncio.run(_create(address.url, database))
            self._databases.add(database)
        return f"postgresql://{launcher.USER}@/{database}?host={quote(address.socket_dir, safe='')}"

    @property
    def server_pid(self) -> int:
        return int((launcher.folder_of(self.home) / "data" / "postmaster.pid").read_text().splitlines()[0])

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CAPATAZ_")}
        return {**kept, "CAPATAZ_HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "", **more}

    def close(self) -> None:
        launcher.stop_server(self.home)


async def _create(url: str, name: str) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))


def server_settings(url: str) -> dict[str, str]:
    """What decides the price of a commit."""
    import psycopg

    with psycopg.connect(url) as connection:
        names = ("server_version", "synchronous_commit", "fsync", "shared_buffers")
        return {name: str(connection.execute(f"SHOW {name}").fetchone()[0]) for name in names}  # type: ignore[index, arg-type]
