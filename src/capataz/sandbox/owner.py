"""Folders of sandboxes under the runtime directory, and removing what a killed worker left there.

A worker owns one folder, locked for as long as it lives; a folder whose lock is free belongs to nobody any more.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capataz.contracts.errors import SandboxUnavailable
from capataz.sandbox import cgroup

_BUSY: dict[tuple[Path, int], Owner] = {}


class Owner:
    """This process's folder below ``runtime_dir``: ``lock``, ``spool``, one folder a session."""

    def __init__(self, runtime_dir: Path) -> None:
        self._base = runtime_dir / "sandbox"
        self._base.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_stale(self._base)
        cgroup.sweep()
        self.folder = self._base / f"{os.getpid()}-{os.urandom(4).hex()}"
        building = self._base / f".{self.folder.name}"
        building.mkdir(mode=0o700)
        self._lock = os.open(building / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (building / "spool").mkdir()
        building.rename(self.folder)           # never visible without its lock taken
        self.spool = self.folder / "spool"
        self._pid = os.getpid()
        atexit.register(self._leave)
        self._sessions = 0

    def _leave(self) -> None:
        """At the worker's orderly end: what it still holds dies with it and the next worker removes that."""
        if os.getpid() == self._pid and not any(self.folder.glob("session-*")):
            shutil.rmtree(self.folder, ignore_errors=True)

    def session(self) -> Path:
        """A new folder for one session."""
        self._sessions += 1
        path = self.folder / f"session-{self._sessions}"
        path.mkdir(mode=0o700)
        return path

    def note_cgroups(self, session: Path, folders: list[Path]) -> None:
        """Written before the groups are made, so that a kill at any moment leaves none that nobody knows."""
        (session / "cgroups").write_bytes(b"\0".join(os.fsencode(folder) for folder in folders))


def owner(runtime_dir: Path) -> Owner:
    """The one ``Owner`` of this process for ``runtime_dir``. Raises ``SandboxUnavailable`` if it cannot be written."""
    key = (runtime_dir.absolute(), os.getpid())
    found = _BUSY.get(key)
    if found is None or not found.folder.is_dir():
        try:
            found = _BUSY[key] = Owner(key[0])
        except OSError as error:
            raise SandboxUnavailable(f"the runtime folder {runtime_dir} cannot be used: {error.strerror}") from None
    return found


@contextmanager
def set_up(runtime_dir: Path) -> Iterator[None]:
    """A machine that cannot hold one more session (its disk is full, its descriptors are used up) is ``SandboxUnavailable``."""
    try:
        yield
    except OSError as error:
        raise SandboxUnavailable(f"no sandbox can be set up in {runtime_dir}: {error.strerror or error}") from None


def remove_stale(base: Path) -> None:
    """Removes the folders and control groups of workers that are gone."""
    for folder in base.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            _remove_if_free(folder)


def _remove_if_free(folder: Path) -> None:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return                                 # being made, or no folder of ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        noted = [name for session in folder.glob("session-*/cgroups") for name in session.read_bytes().split(b"\0") if name]
        if cgroup.remove_stale([Path(os.fsdecode(name)) for name in noted]):
            remove_tree(folder)                # else the next worker tries again
    except OSError:
        pass                                   # its worker lives
    finally:
        os.close(lock)


def remove_tree(folder: Path) -> None:
    """Removes a folder that hostile code may have written in (links are not followed; closed folders are opened)."""

    def reopen(function: object, path: str, error: object) -> None:
        parent = Path(path).parent
        try:
            for place in (parent, Path(path)):
                if not place.is_symlink():
                    place.chmod(0o700)
            if Path(path).is_dir() and not Path(path).is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink(missing_ok=True)
        except OSError:
            pass

    shutil.rmtree(folder, onerror=reopen)
