"""``capataz db``: the embedded server, or the database that ``CAPATAZ_DATABASE_URL`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capataz.wiring.config import Config


class Database:
    def __init__(self, config: Config) -> None:
        self._config = config

    def _admin(self) -> Any:
        from capataz.store import admin

        return admin.Admin(self._config.home, self._config.database_url)

    async def start(self) -> str:
        return await self._admin().start()

    async def stop(self) -> bool:
        return await self._admin().stop()

    async def url(self) -> str:
        return await self._admin().url()

    async def migrate(self) -> dict[str, Any]:
        return await self._admin().migrate()

    async def backup(self, target: Path) -> dict[str, Any]:
        return await self._admin().backup(target)

    async def restore(self, source: Path) -> dict[str, Any]:
        return await self._admin().restore(source)
