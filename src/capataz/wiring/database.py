"""``capataz db``: the embedded server, or the database that ``CAPATAZ_DATABASE_URL`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capataz.wiring.config import Config


class Database:
    def __init__(self, config: Config) -> None:
        self._home = config.home
        self._database_url = config.database_url
        self._blob_url = config.blob_url

    async def start(self) -> str:
        from capataz.store import admin

        return await admin.start(self._home, self._database_url)

    async def stop(self) -> bool:
        from capataz.store import admin

        return await admin.stop(self._home, self._database_url)

    async def url(self) -> str:
        from capataz.store import admin

        return await admin.url(self._home, self._database_url)

    async def migrate(self) -> dict[str, Any]:
        from capataz.store import admin

        before, after = await admin.migrate(self._home, self._database_url)
        return {"from": before, "to": after}

    async def backup(self, target: Path) -> dict[str, Any]:
        from capataz.store import admin

        size = await admin.backup(target, self._home, self._database_url, self._blob_url)
        return {"file": str(target), "bytes": size}

    async def restore(self, source: Path) -> dict[str, Any]:
        from capataz.store import admin

        await admin.restore(source, self._home, self._database_url, self._blob_url)
        return {"file": str(source)}
