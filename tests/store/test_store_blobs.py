"""Blobs: by digest, whole or absent, local and remote."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capataz.contracts.blobs import Blobs
from capataz.contracts.errors import NotFound, StoreUnavailable
from capataz.store.blobs import LocalBlobs, open_blobs


@pytest.fixture(params=["local", "file url", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    url = {"local": None, "file url": f"file://{tmp_path}/ü b", "memory": f"memory://{tmp_path.name}"}[request.param]
    return open_blobs(tmp_path / "h", url)


async def test_bytes_come_back(blobs: Blobs) -> None:
    for data in (b"", b"\x00\xff", b"x" * 3_000_000):
        uri = await blobs.put(data)
        assert await blobs.put(data) == uri and uri.startswith("blob:") and len(uri) == 69
        assert await blobs.get(uri) == data


async def test_the_same_bytes_at_once(blobs: Blobs) -> None:
    uris = await asyncio.gather(*(blobs.put(b"same") for _ in range(20)))
    assert len(set(uris)) == 1
    assert await blobs.get(uris[0]) == b"same"


@pytest.mark.parametrize("uri", ["blob:" + "0" * 64, "blob:../../etc/passwd", "", "blob:" + "A" * 64, "blob:" + "0" * 64 + "\n"])
async def test_unknown_blobs_are_not_found(blobs: Blobs, uri: str) -> None:
    with pytest.raises(NotFound):
        await blobs.get(uri)


async def test_stored_once_private_and_without_leftovers(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "blobs")
    uri = await blobs.put(b"a")
    await blobs.put(b"a")
    (path,) = [p for p in (tmp_path / "blobs").rglob("*") if p.is_file()]
    assert path.name == uri[5:] and path.stat().st_mode & 0o077 == 0
    assert list(blobs.digests()) == [path.name]


async def test_a_corrupt_blob_is_told_and_a_short_one_is_written_again(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "blobs")
    uri = await blobs.put(b"good")
    (path,) = [p for p in (tmp_path / "blobs").rglob("*") if p.is_file()]
    path.write_bytes(b"evil")
    with pytest.raises(StoreUnavailable, match="corrupt"):
        await blobs.get(uri)
    path.write_bytes(b"go")
    await blobs.put(b"good")
    assert await blobs.get(uri) == b"good"


async def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="the blob store fails"):
        await LocalBlobs(tmp_path / "file").put(b"a")


@pytest.mark.parametrize(("url", "says"), [("nosuch://x/y", "CAPATAZ_BLOB_URL"), ("s3://bucket/x", "install capataz")])
def test_a_url_that_cannot_work_says_what_to_do(tmp_path: Path, url: str, says: str) -> None:
    with pytest.raises(StoreUnavailable, match=says):
        open_blobs(tmp_path, url)
