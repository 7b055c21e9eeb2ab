"""Connections to one database: a few kept open, each statement retried for a bounded time when the server goes away.

An own pool of forty lines: psycopg_pool hides why a connection fails and backs off for minutes, while a restart of the
embedded server is ours to do at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from capataz.contracts.errors import StoreUnavailable
from capataz.store import urls, values
from capataz.store.embedded import launcher

T = TypeVar("T")
Connection = AsyncConnection[Any]

RETRY_S = 30.0
SIZE = 4
OLDEST_SERVER = 150_000
_LASTING = {"28000", "28P01", "3D000", "42501"}  # a login, password, database or right that will not mend itself
_PASSING = {"40001", "40P01", "53300", "55P03", "57P01", "57P02", "57P03", "57P05"}


def passes(error: BaseException) -> bool:
    """Whether the same statement may work on another connection a little later."""
    if isinstance(error, StoreUnavailable):
        return error.retryable
    if isinstance(error, psycopg.errors.PipelineAborted):
        return True
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    state = error.sqlstate
    return state is None or state.startswith("08") or state in _PASSING


class _JsonLoader(Loader):
    """psycopg's own guesses the encoding of each value and parses slowly: half the time of reading a journal."""

    def load(self, data: Buffer) -> Any:
        return values.load(bytes(data))


class Source:
    """Where the database is: a given URL, or the embedded server of a home, which is started when it does not run."""

    def __init__(self, home: Path, url: str | None) -> None:
        self.folder = launcher.folder_of(home)
        self.home = home
        self.embedded = url is None
        self.parts: dict[str, Any] = urls.parameters(url) if url is not None else {}

    async def find(self, *, start: bool) -> dict[str, Any]:
        """libpq parameters. Embedded: of the recorded server, or of one that is started now."""
        if self.embedded:
            address = None if start else launcher.recorded(self.folder)
            address = address or await asyncio.to_thread(launcher.ensure_server, self.home)
            self.parts = urls.parameters(address.url)
        return self.parts

    async def revive(self) -> None:
        """After a lost connection: an embedded server is started again, but never a new database made in place of a lost one."""
        if self.embedded:
            if not (self.folder / "data" / "PG_VERSION").exists():
                raise StoreUnavailable(f"the database in {self.folder} was deleted while it was used", retryable=False)
            await self.find(start=True)


class Database:
    """The few connections of one process. Belongs to one event loop."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(SIZE)
        self._closed = False

    async def open(self) -> None:
        """Connects once. Raises ``StoreUnavailable`` at once for a URL that does not work; starts an embedded server."""
        await self.source.find(start=False)
        try:
            self._idle.append(await self.connect())
        except StoreUnavailable:
            if not self.source.embedded:
                raise
            await self.source.find(start=True)
            await self.run(_ping)

    async def connect(self) -> Connection:
        """A new connection in autocommit mode. Raises ``StoreUnavailable``: one line, the password masked."""
        parts = self.source.parts
        try:
            connection = await AsyncConnection[Any].connect(**parts, autocommit=True)
        except (psycopg.Error, OSError, ValueError) as error:
            lasting = getattr(error, "sqlstate", None) in _LASTING
            raise StoreUnavailable(
                f"cannot reach PostgreSQL at {urls.where(parts)}: {urls.reason(error, parts)}; {self._cure()}", retryable=not lasting
            ) from None
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            await connection.close()
            raise StoreUnavailable(f"PostgreSQL at {urls.where(parts)} is {version // 10000}; Capataz needs 15 or newer", retryable=False)
        connection.prepare_threshold = 2
        connection.adapters.register_loader("json", _JsonLoader)
        return connection

    def _cure(self) -> str:
        return f"see {self.source.folder / 'server.log'}" if self.source.embedded else "check CAPATAZ_DATABASE_URL and that the server runs"

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One of the kept connections. It is kept on only after a clean use: a cancelled or failed one is closed."""
        async with self._slots:
            connection = self._take() or await self.connect()
            clean = False
            try:
                yield connection
                clean = True
            finally:
                if clean and not self._closed and not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                    self._idle.append(connection)
                else:
                    await connection.close()

    def _take(self) -> Connection | None:
        if self._closed:
            raise StoreUnavailable("the store is closed", retryable=False)
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """``work`` on a connection, again for at most 30 s while the server is away. So ``work`` must bear repetition, also
        after a commit whose answer was lost. Raises ``StoreUnavailable``; errors that are not the server's pass unchanged."""
        until: float | None = None
        pause = 0.02
        while True:
            try:
                async with self.connection() as connection:
                    return await work(connection)
            except (psycopg.Error, StoreUnavailable) as error:
                until = until if until is not None else time.monotonic() + RETRY_S
                if not passes(error) or time.monotonic() + pause > until:
                    raise self._final(error) from error
            await self._drop_idle()
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
            await self._revive(until)

    async def _revive(self, until: float) -> None:
        try:
            await self.source.revive()
        except StoreUnavailable as error:
            if not error.retryable or time.monotonic() > until:
                raise

    def _final(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return error
        return StoreUnavailable(f"PostgreSQL at {urls.where(self.source.parts)} refuses: {urls.reason(error, self.source.parts)}")

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def close(self) -> None:
        self._closed = True
        await self._drop_idle()


async def _ping(connection: Connection) -> None:
    await connection.execute("SELECT 1")
