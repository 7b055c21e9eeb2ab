"""Finding, starting and stopping the embedded server of a home. Blocking: call it in a thread.

A server is alive when it answers on its socket; pids are never believed. Processes that start at once share one server:
the supervisor's lock lets a second one only wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.errors import StoreUnavailable
from capataz.store.embedded import postgres_supervisor as supervisor
from capataz.store.embedded.binaries import binaries
from capataz.store.embedded.identity import server_uid

USER = "capataz"
DATABASE = "postgres"
START_S = 90.0
STOP_S = 40.0
_SSL_REQUEST = struct.pack(">II", 8, 80877103)
_FLOCK = "hhqqi4x" if sys.maxsize > 2**32 else "hhllii"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    socket_dir: str

    @property
    def url(self) -> str:
        """A libpq URL; the folder is percent-encoded."""
        from urllib.parse import quote

        return f"postgresql://{USER}@/{DATABASE}?host={quote(self.socket_dir, safe='')}"


def folder_of(home: Path) -> Path:
    return home / "postgres"


def ensure_server(home: Path) -> Address:
    """The running server's address, starting it when needed. Raises ``StoreUnavailable`` with what to mend."""
    folder = folder_of(home)
    return running(folder) or _start(folder)


def running(folder: Path) -> Address | None:
    """The address of the server of this folder if it accepts connections."""
    address = recorded(folder)
    return address if address and _accepts(Path(address.socket_dir)) else None


def recorded(folder: Path) -> Address | None:
    """What the last supervisor wrote, unless it belongs to another folder (a copy) or to somebody else."""
    try:
        record = json.loads((folder / "server.json").read_bytes())
        here = (folder / "data").stat()
        place = Path(record["socket_dir"])
        private = place.stat()
    except (OSError, ValueError, KeyError):
        return None
    owners = {os.geteuid(), here.st_uid}
    if (record.get("device"), record.get("inode")) != (here.st_dev, here.st_ino) or private.st_uid not in owners or private.st_mode & 0o077:
        return None
    return Address(os.fspath(place))


def _accepts(place: Path) -> bool:
    """Whether a server process answers there. A connect alone proves nothing: the socket of a killed postmaster accepts
    while its last children hold it. An SSLRequest is answered by one byte from a living server, starting up or not."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(os.fsencode(place / supervisor.SOCKET_NAME))
            probe.sendall(_SSL_REQUEST)
            return probe.recv(1) != b""
        except OSError:
            return False


def _start(folder: Path) -> Address:
    make_private(folder)
    programs = binaries()
    uid = server_uid(folder, programs)
    until = time.monotonic() + START_S
    with _start_lock(folder, until):
        while time.monotonic() < until:
            if address := running(folder):
                return address
            answer = _launch(folder, programs, uid)
            if answer.startswith("error: "):
                raise StoreUnavailable(answer.removeprefix("error: "))
            if answer != "ready":
                time.sleep(0.05)               # busy: another supervisor starts or still stops
    raise StoreUnavailable(f"the embedded PostgreSQL in {folder} did not start within {START_S:.0f} s; see server.log there")


def make_private(folder: Path) -> None:
    """The folder, 0700. Parents that are missing are made; the mode of one that exists is never changed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise StoreUnavailable(f"cannot use {folder}: {error.strerror}; choose another place by CAPATAZ_HOME") from error


@contextlib.contextmanager
def _start_lock(folder: Path, until: float) -> Iterator[None]:
    """One starter at a time. A flock: it excludes threads of one process too, and a killed holder frees it."""
    descriptor = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_flock(descriptor):
            if time.monotonic() > until:
                raise StoreUnavailable(f"another process has been starting the database in {folder} for {START_S:.0f} s")
            if running(folder):
                break
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _launch(folder: Path, programs: Path, uid: str) -> str:
    """Starts a supervisor and returns the line that it says."""
    script = Path(supervisor.__file__).resolve()
    log = os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", os.fspath(script), os.fspath(folder.resolve()), os.fspath(programs), uid],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=supervisor.environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise StoreUnavailable(f"cannot start {sys.executable}: {error.strerror}") from error
    finally:
        os.close(log)
    assert child.stdout is not None
    with child, child.stdout as answers:
        ready, _, _ = select.select([answers], [], [], START_S)
        line = answers.readline() if ready else b"error: the supervisor of PostgreSQL says nothing\n"
    return line.decode("utf-8", "replace").strip() or f"error: the supervisor of PostgreSQL ended at once; see {folder / 'server.log'}"


def stop_server(home: Path) -> bool:
    """Fast shutdown; returns when the server is gone. False when none ran. Clients lose their connections, no data."""
    folder = folder_of(home)
    pid = _lock_holder(folder / "supervisor.lock")
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    elif not _stop_orphan(folder):
        return False
    until = time.monotonic() + STOP_S
    while _lock_holder(folder / "supervisor.lock") == pid != 0 or running(folder):
        if time.monotonic() > until:
            raise StoreUnavailable(f"the embedded PostgreSQL in {folder} did not stop within {STOP_S:.0f} s")
        time.sleep(0.02)
    return True


def _stop_orphan(folder: Path) -> bool:
    """A server whose supervisor was killed: its pid counts only while it works in this very folder and answers."""
    lines = supervisor.pid_file(folder / "data")
    if not running(folder) or not lines or not lines[0].isdecimal() or not supervisor.runs_on(int(lines[0]), folder / "data"):
        return False
    os.kill(int(lines[0]), signal.SIGINT)
    return True


def _lock_holder(path: Path) -> int:
    """The pid that the kernel names as holder of the supervisor's lock; 0: nobody holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[:5]
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else pid
