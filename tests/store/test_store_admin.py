"""What `capataz db` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from capataz.contracts.errors import IncompatibleStore, UsageError
from capataz.contracts.journal import Batch
from capataz.store import admin
from capataz.store.embedded.launcher import ensure_server
from capataz.store.migrations import apply
from capataz.store.store import Store, open_store
from capataz.testing.journal_conformance import BOB, LONG, completed, event, everything, requested, started

ODD = ["\x00", "tab\tnew\nline\\.", "\ud800", 10**30, 0.1]


async def filled(store: Store) -> str:
    lease = await started(store.journal)
    await store.journal.commit(lease, Batch(requested=(requested("k1", 0, input=ODD),), completed=(completed("k1", 0, result=ODD),), events=(event(1),)))
    return await store.blobs.put(b"artifact")


async def test_a_backup_restores_into_an_empty_store(home: Path, store: Store, own_home: Path, tmp_path: Path) -> None:
    uri = await filled(store)
    before = await everything(store.journal, "r1")
    file = tmp_path / "bäck up.tar"
    assert await admin.backup(file, home) == file.stat().st_size
    assert file.stat().st_mode & 0o077 == 0
    await admin.restore(file, own_home)
    other = await open_store(own_home)
    assert await everything(other.journal, "r1") == before
    assert await other.blobs.get(uri) == b"artifact"
    lease = await other.journal.claim("r1", BOB, ttl_s=LONG)
    assert lease is not None and lease.epoch == 2, "no worker of the past holds the run, and epochs go on"
    await other.journal.commit(lease, Batch(requested=(requested("k2", 1),), events=(event(2),)))
    assert [row.key for row in await other.journal.effects("r1")] == ["k1", "k2"], "the order of requests goes on too"
    await other.close()


async def test_by_url_too(home: Path, store: Store, tmp_path: Path) -> None:
    await filled(store)
    url = ensure_server(home).url
    await admin.backup(tmp_path / "b", tmp_path / "none", url)
    before = await everything(store.journal, "r1")
    await store.journal.post("r1", "message", "later", target=None, sender="ana", at=1.0)
    await admin.restore(tmp_path / "b", tmp_path / "none", url, replace=True)
    assert await everything(store.journal, "r1") == before
    assert not (tmp_path / "none" / "postgres").exists()


async def test_a_store_with_runs_is_not_overwritten_unasked(home: Path, store: Store, tmp_path: Path) -> None:
    await filled(store)
    await admin.backup(tmp_path / "b", home)
    with pytest.raises(UsageError, match="holds runs already"):
        await admin.restore(tmp_path / "b", home)
    with pytest.raises(UsageError, match="exists already"):
        await admin.backup(tmp_path / "b", home)


async def test_a_failed_restore_changes_nothing(home: Path, store: Store, tmp_path: Path) -> None:
    await filled(store)
    await admin.backup(tmp_path / "b", home)
    whole = (tmp_path / "b").read_bytes()
    (tmp_path / "bad").write_bytes(whole.replace(b"COPY public.events", b"COPY public.nonono"))
    before = await everything(store.journal, "r1")
    with pytest.raises(Exception, match="nonono"):
        await admin.restore(tmp_path / "bad", home, replace=True)
    assert await everything(store.journal, "r1") == before


@pytest.mark.parametrize("content", [b"", b"junk", b"x" * 20_000])
async def test_what_is_no_backup_is_refused(home: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(UsageError, match="is no backup"):
        await admin.restore(tmp_path / "b", home)
    with pytest.raises(UsageError, match="cannot read"):
        await admin.restore(tmp_path / "missing", home)


async def test_a_newer_backup_is_refused(home: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "HEAD", "9999")
    monkeypatch.setattr(admin, "ensure_schema", _nothing)
    await admin.backup(tmp_path / "b", home)
    monkeypatch.undo()
    with pytest.raises(IncompatibleStore, match="9999"):
        await admin.restore(tmp_path / "b", home, replace=True)


async def _nothing(database: object) -> None:
    pass


async def test_start_url_migrate_stop(own_home: Path) -> None:
    assert (await admin.start(own_home)).startswith("postgresql://capataz@/")
    assert await admin.migrate(own_home) == (apply.HEAD, apply.HEAD)
    assert await admin.url(own_home) == ensure_server(own_home).url
    assert await admin.stop(own_home)
    assert not await admin.stop(own_home)
    with pytest.raises(UsageError, match="external"):
        await admin.stop(own_home, "postgresql://h/d")
