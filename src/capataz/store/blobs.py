"""The blob port through fsspec: content-addressed, in a local folder or at ``s3://``, ``gs://``, ``az://`` and the like."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capataz.contracts.errors import NotFound, StoreUnavailable
from capataz.contracts.faults import Faults, NoFaults
from capataz.store.urls import masked

_URI = re.compile(r"blob:([0-9a-f]{64})")
_PACKAGES = {"s3": "capataz[s3]", "gs": "capataz[gcs]", "gcs": "capataz[gcs]", "az": "capataz[azure]", "abfs": "capataz[azure]"}


def relative(digest: str) -> str:
    """Two levels of folders, so that none grows past some thousands of entries."""
    return f"{digest[:2]}/{digest[2:4]}/{digest}"


def digest_of(uri: str) -> str:
    match = _URI.fullmatch(uri)
    if not match:
        raise NotFound(f"{uri!r} is no blob; one looks like blob: and 64 hex digits")
    return match[1]


class LocalBlobs:
    """A folder. A blob appears by one rename after its bytes are on the disk, so a crash leaves it whole or absent."""

    def __init__(self, folder: Path, faults: Faults | None = None) -> None:
        self.folder = folder
        self._faults = faults or NoFaults()

    async def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._faults.reach("blob.before")
        await _guarded(self._write, digest, data)
        self._faults.reach("blob.after")
        return f"blob:{digest}"

    def _write(self, digest: str, data: bytes) -> None:
        path = self.folder / relative(digest)
        if path.exists() and path.stat().st_size == len(data):
            return
        made = _make_parents(path.parent, self.folder)
        fresh = path.with_name(f".{digest}.{uuid.uuid4().hex}")
        try:
            with fresh.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        for folder in {path.parent, *made}:
            _sync(folder)

    async def get(self, uri: str) -> bytes:
        digest = digest_of(uri)
        return _checked(await _guarded(self._read, digest), uri, digest)

    def _read(self, digest: str) -> bytes:
        try:
            return (self.folder / relative(digest)).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"no blob:{digest} in {self.folder}") from None

    def digests(self) -> Iterator[str]:
        """Of every whole blob, for backups."""
        for path in self.folder.glob("??/??/*"):
            if _URI.fullmatch(f"blob:{path.name}"):
                yield path.name

    async def close(self) -> None:
        pass


class RemoteBlobs:
    """Any file system of fsspec. Object stores write an object whole or not at all."""

    def __init__(self, url: str, faults: Faults | None = None) -> None:
        self._faults = faults or NoFaults()
        self._url = masked(url)
        self._fs, self._root = _open(url)

    async def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._faults.reach("blob.before")
        await _guarded(self._write, digest, data)
        self._faults.reach("blob.after")
        return f"blob:{digest}"

    def _write(self, digest: str, data: bytes) -> None:
        path = f"{self._root}/{relative(digest)}"
        if self._fs.exists(path) and self._fs.size(path) == len(data):
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, data)

    async def get(self, uri: str) -> bytes:
        digest = digest_of(uri)
        return _checked(await _guarded(self._read, digest), uri, digest)

    def _read(self, digest: str) -> bytes:
        try:
            return self._fs.cat_file(f"{self._root}/{relative(digest)}")
        except FileNotFoundError:
            raise NotFound(f"no blob:{digest} in {self._url}") from None

    async def close(self) -> None:
        pass


def open_blobs(home: Path, url: str | None, faults: Faults | None = None) -> LocalBlobs | RemoteBlobs:
    """``HOME/blobs``, or what ``CAPATAZ_BLOB_URL`` names. Raises ``StoreUnavailable`` for a URL that cannot work."""
    if not url:
        return LocalBlobs(home / "blobs", faults)
    if "://" not in url or url.startswith("file://"):
        return LocalBlobs(Path(url.removeprefix("file://")), faults)
    return RemoteBlobs(url, faults)


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    scheme = url.partition("://")[0]
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except ImportError:
        package = _PACKAGES.get(scheme)
        cure = f"install {package}" if package else "install the fsspec package for it"
        raise StoreUnavailable(f"CAPATAZ_BLOB_URL: {scheme}:// needs another package; {cure}") from None
    except ValueError as error:
        raise StoreUnavailable(f"CAPATAZ_BLOB_URL={masked(url)!r} cannot be used: {masked(str(error))}; write for example s3://BUCKET/FOLDER") from None
    return fs, str(root).rstrip("/")


async def _guarded(work: Any, *args: Any) -> Any:
    """In a thread, with the world's errors in our words."""
    try:
        return await asyncio.to_thread(work, *args)
    except (NotFound, StoreUnavailable):
        raise
    except Exception as error:                 # object stores raise classes of their own libraries
        line = masked(" ".join(str(error).split())) or type(error).__name__
        raise StoreUnavailable(f"the blob store fails: {line}; check its folder or CAPATAZ_BLOB_URL") from error


def _checked(data: bytes, uri: str, digest: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != digest:
        raise StoreUnavailable(f"{uri} is corrupt in the blob store; restore it from a backup", retryable=False)
    return data


def _make_parents(folder: Path, root: Path) -> list[Path]:
    """Makes the folders (private) and returns the parents whose entries changed."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return [path.parent for path in missing]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
