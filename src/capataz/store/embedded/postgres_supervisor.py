"""The small process above the embedded PostgreSQL server. Run by path, with the standard library only.

``python -I -S postgres_supervisor.py FOLDER BIN UID`` in a session of its own. It makes the data folder when it is missing,
starts ``postgres``, says ``ready`` or ``error: ...`` on its standard output (one line, then closes it), reaps the server
and ends with it. SIGTERM or SIGINT ask for a fast shutdown. It holds ``FOLDER/supervisor.lock`` while it lives, so that
one server at most runs on a folder; it stops the server when the folder or the socket goes away.

``UID`` is ``same`` (run as the caller), ``namespace`` (the caller is root: PostgreSQL refuses uid 0, so it runs in a user
namespace where the caller is uid 1000, nothing is chowned and parents may be 0700) or the number of a uid to change to.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"
SOCKET_PATH_LIMIT = 107                        # sockaddr_un holds 108 bytes with the final NUL
CLONE_NEWUSER = 0x10000000
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
START_S = 60.0                                 # crash recovery of a large WAL takes a while
REAP_S = 15.0                                  # how long children of a killed postmaster may hold the folder
WATCH_S = 1.0
LOG_BYTES = 4 << 20
TRANSIENT = ("pre-existing shared memory", "postmaster.pid", "already in use", "Is another postmaster")
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "100",
    "shared_buffers": "64MB",
    "huge_pages": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "min_wal_size": "64MB",
    "io_method": "sync",                       # three processes fewer than the default
    "max_logical_replication_workers": "0",    # one fewer
    "max_parallel_workers_per_gather": "0",    # parallel queries need /dev/shm, which is tiny in containers
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "logging_collector": "off",
    "log_destination": "stderr",
}


class Refused(Exception):
    """A start that cannot work; the message is one line for the person."""


def main(folder: Path, binaries: Path, uid: str) -> None:
    if os.fork():                              # an orphan from the start: no parent has to reap it
        os._exit(0)
    name_process()
    reset_signals()
    lock = take_lock(folder / "supervisor.lock")
    if lock is None:
        return report("busy")                  # another supervisor is starting, serving or stopping
    try:
        serve(folder, binaries, uid)
    except Refused as error:
        report(f"error: {error}")
    except OSError as error:
        report(f"error: {error.strerror or error} ({error.filename or folder})")


def name_process() -> None:
    """A name that says what it belongs to, and the children of a killed postmaster as ours to reap."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_NAME, b"postgres-super", 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reset_signals() -> None:
    """Signals are waited for, not handled: no race between a check and a wait."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})


def take_lock(path: Path) -> int | None:
    """A POSIX lock: the kernel tells its holder's pid to whoever asks, so no pid file can lie."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def report(line: str) -> None:
    with contextlib.suppress(OSError):         # whoever started us may be dead already
        os.write(1, " ".join(line.split()).encode("utf-8", "surrogateescape") + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)


def serve(folder: Path, binaries: Path, uid: str) -> None:
    data = folder / "data"
    become = entry(uid)
    own(folder, uid)
    if not (data / "PG_VERSION").exists():
        initialise(folder, binaries, become, uid)
    check_version(data, binaries)
    sockets = socket_folder(folder, uid)
    try:
        child = start(folder, binaries, become, sockets)
        write_record(folder, data, sockets)
        report("ready")
        watch(child, data, sockets)
    finally:
        reap_all()
        if sockets.parent != folder:
            shutil.rmtree(sockets, ignore_errors=True)


# ---- who runs it --------------------------------------------------------------------------------


def entry(uid: str) -> Callable[[], None]:
    """What a child does between fork and exec."""
    if uid == "same":
        return prepare_child
    if uid == "namespace":
        return enter_namespace
    return lambda: change_uid(int(uid))


def prepare_child() -> None:
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def enter_namespace() -> None:
    prepare_child()
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - one write, no buffering games
            file.write(text)


def change_uid(uid: int) -> None:
    prepare_child()
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def owner(uid: str) -> int:
    return int(uid) if uid.isdecimal() else os.geteuid()


def own(path: Path, uid: str) -> None:
    """Our own folder, never a parent, belongs to the uid that runs the server (it differs only without namespaces)."""
    wanted = owner(uid)
    if os.geteuid() != 0 or path.stat().st_uid == wanted:
        return
    os.lchown(path, wanted, wanted)
    for root, folders, files in os.walk(path):
        for name in folders + files:
            os.lchown(Path(root, name), wanted, wanted)


# ---- the data folder -----------------------------------------------------------------------------


def initialise(folder: Path, binaries: Path, become: Callable[[], None], uid: str) -> None:
    """Into a temporary folder, then one rename: a data folder is whole or absent. The lock is held."""
    for old in folder.glob("data.new-*"):
        shutil.rmtree(old, ignore_errors=True)
    if (folder / "data").exists():             # no PG_VERSION: never a whole cluster of ours
        raise Refused(f"{folder / 'data'} exists but is no database; move it away, or restore a backup")
    fresh = Path(tempfile.mkdtemp(prefix="data.new-", dir=folder))
    if uid.isdecimal():
        os.chown(fresh, int(uid), int(uid))
    command = [str(binaries / "initdb"), "-D", str(fresh), "-U", "capataz", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    done = run(command, become, folder)
    if done.returncode:
        shutil.rmtree(fresh, ignore_errors=True)
        raise Refused(f"initdb failed: {last_line(done.stderr) or done.returncode}")
    fresh.rename(folder / "data")
    sync_folder(folder)


def run(command: list[str], become: Callable[[], None], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, preexec_fn=become, cwd="/", env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise Refused(f"cannot run {Path(command[0]).name}: {error}") from error


def environment() -> dict[str, str]:
    """Nothing of the caller's: the server outlives it, and secrets have no business there."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": "/"}


def last_line(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip() and not line.startswith("initdb: removing")]
    return lines[-1].strip() if lines else ""


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_version(data: Path, binaries: Path) -> None:
    there = (data / "PG_VERSION").read_text().strip()
    shown = subprocess.run([str(binaries / "postgres"), "--version"], env=environment(), capture_output=True, text=True, check=False).stdout
    ours = shown.split()[-1].split(".")[0] if shown.split() else there
    if there != ours:
        raise Refused(f"{data} is of PostgreSQL {there}, the installed one is {ours}; back up with the version that wrote it, then restore")


# ---- the socket ----------------------------------------------------------------------------------


def socket_folder(folder: Path, uid: str) -> Path:
    """``FOLDER/run`` when PostgreSQL and the kernel can use that path, else a private short folder."""
    inside = folder / "run"
    if usable(inside):
        inside.mkdir(mode=0o700, exist_ok=True)
        if uid.isdecimal():
            os.chown(inside, int(uid), int(uid))
        return inside
    short = Path(tempfile.mkdtemp(prefix="capataz-pg-", dir=short_root()))
    if uid.isdecimal():
        os.chown(short, int(uid), int(uid))
    return short


def short_root() -> str:
    root = tempfile.gettempdir()
    return root if len(os.fsencode(root)) < 60 and set(os.fsencode(root)) <= PLAIN else "/tmp"


def usable(folder: Path) -> bool:
    """Short enough, plain (the setting is a list with quoting rules of its own) and on a file system with sockets."""
    path = os.fsencode(folder)
    if len(path) + len(SOCKET_NAME) + len("/.lock") > SOCKET_PATH_LIMIT or not set(path) <= PLAIN:
        return False
    probe = folder.parent / f".probe-{os.getpid()}"
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(os.fsencode(probe))
        return True
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


def write_record(folder: Path, data: Path, sockets: Path) -> None:
    """Where the server listens, for other processes; bound to this very folder, so that a copy of it is not fooled."""
    there = data.stat()
    record = {"socket_dir": os.fspath(sockets), "device": there.st_dev, "inode": there.st_ino}
    fresh = folder / "server.json.new"
    fresh.write_bytes(json.dumps(record).encode("ascii"))  # surrogates of odd paths become escapes
    fresh.replace(folder / "server.json")


# ---- the server ----------------------------------------------------------------------------------


def start(folder: Path, binaries: Path, become: Callable[[], None], sockets: Path) -> subprocess.Popen[bytes]:
    """The server, ready. A start is refused while children of a killed postmaster still live: wait and try again."""
    until = time.monotonic() + REAP_S
    while True:
        drop_stale_locks(folder / "data", sockets)
        log = open_log(folder)
        with log:
            begin = log.tell()
            child = spawn(folder, binaries, become, sockets, log)
        if await_ready(child, folder / "data"):
            return child
        reap_all()
        said = read_from(folder / "server.log", begin)
        if time.monotonic() > until or not any(part in said for part in TRANSIENT):
            raise Refused(f"the embedded PostgreSQL does not start: {fatal_line(said)} (log: {folder / 'server.log'})")
        time.sleep(0.1)


def open_log(folder: Path) -> BinaryIO:
    path = folder / "server.log"
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(folder / "server.log.1")
    log = path.open("ab")
    os.fchmod(log.fileno(), 0o600)
    return log


def read_from(path: Path, begin: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(begin)
        return file.read(64 << 10).decode("utf-8", "replace")
    return ""


def fatal_line(said: str) -> str:
    """The line that says why, without its time and process."""
    lines = [line for line in said.splitlines() if line.strip()]
    chosen = [line for line in lines if "FATAL:" in line or "PANIC:" in line] or lines[-1:]
    return chosen[-1].partition("]")[2].strip() or chosen[-1].strip() if chosen else "no reason given"


def spawn(folder: Path, binaries: Path, become: Callable[[], None], sockets: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
    settings = {**SETTINGS, "unix_socket_directories": os.fspath(sockets)}
    command = [os.fspath(binaries / "postgres"), "-D", os.fspath(folder / "data")]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    try:
        return subprocess.Popen(command, preexec_fn=become, cwd="/", env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    except (OSError, subprocess.SubprocessError) as error:
        raise Refused(f"cannot run postgres: {error}") from error


def await_ready(child: subprocess.Popen[bytes], data: Path) -> bool:
    """True once ``postmaster.pid`` of this child says ready; False when it ended. SIGTERM meanwhile ends it."""
    until = time.monotonic() + START_S
    while child.poll() is None:
        if pid_file(data)[7:8] == ["ready"]:
            return True
        got = signal.sigtimedwait({signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}, 0.005)
        if time.monotonic() > until or (got and got.si_signo != signal.SIGCHLD):
            end(child)
            raise Refused("the embedded PostgreSQL was stopped while it started" if got else f"not ready after {START_S:.0f} s")
    return False


def pid_file(data: Path) -> list[str]:
    try:
        return [line.strip() for line in (data / "postmaster.pid").read_text("utf-8", "replace").splitlines()]
    except OSError:
        return []


def drop_stale_locks(data: Path, sockets: Path) -> None:
    """PostgreSQL believes a pid in its lock files while any process has it: after a reboot a stranger, and under an init that
    does not reap, the dead server itself. We hold the lock, and its shared memory interlock still guards against living children."""
    lines = pid_file(data)
    if lines and (not lines[0].isdecimal() or runs_on(int(lines[0]), data)):
        return
    (data / "postmaster.pid").unlink(missing_ok=True)
    for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
        (sockets / name).unlink(missing_ok=True)


def runs_on(pid: int, data: Path) -> bool:
    """Whether that process is a postgres whose working folder is this data folder. Unknown counts as yes."""
    try:
        there, here = Path(f"/proc/{pid}/cwd").stat(), data.stat()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid() if Path(f"/proc/{pid}").exists() else False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def reap_all() -> None:
    """Waits until no process of the server is left, so that the next start finds the folder free."""
    until = time.monotonic() + REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def watch(child: subprocess.Popen[bytes], data: Path, sockets: Path) -> None:
    """Until the server ends. A folder or socket that is gone cannot be reached any more: stop, so that nothing is left."""
    here = data.stat()
    for stop in signals():
        if child.poll() is not None:
            return
        if stop or not still_there(data, here) or not (sockets / SOCKET_NAME).exists():
            return end(child)


def signals() -> Iterator[bool]:
    """Each second, or at once on a signal: whether we are asked to stop."""
    while True:
        got = signal.sigtimedwait({signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}, WATCH_S)
        yield bool(got and got.si_signo != signal.SIGCHLD)


def still_there(data: Path, known: os.stat_result) -> bool:
    try:
        now = data.stat()
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino)


def end(child: subprocess.Popen[bytes]) -> None:
    """Fast shutdown; then immediate; then kill. Durability does not depend on which."""
    for number, patience in ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
            return


if __name__ == "__main__":
    main(Path(os.fsdecode(os.fsencode(sys.argv[1]))), Path(sys.argv[2]), sys.argv[3])
