"""Processes as ``/proc`` shows them: who descends from whom, how much they use, and killing all of them."""

# Pathlib takes longer to import than the helper has to start:
# ruff: noqa: PTH208, PTH123, PTH116, PTH115
from __future__ import annotations

import os

TYPE_CHECKING = False                          # typing itself would cost more than the rest of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Process:
    """One line of ``/proc/PID/stat``. ``cpu_s`` counts children that were waited for."""

    __slots__ = ("cpu_s", "parent", "pid", "rss", "state", "threads")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.cpu_s = sum(map(int, fields[11:15])) / _TICK
        self.threads = int(fields[17])
        self.rss = int(fields[21]) * _PAGE


def processes() -> dict[int, Process]:
    """All processes that can be seen. One that ends meanwhile is left out."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = _read(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def _read(pid: int) -> Process | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # the name may hold blanks and brackets: fields start after its last bracket
        return Process(pid, os.read(fd, 2048).rpartition(b")")[2].split())
    except (OSError, IndexError, ValueError):
        return None
    finally:
        os.close(fd)


def below(root: int, seen: dict[int, Process]) -> list[Process]:
    """The descendants of ``root`` (itself left out)."""
    children: dict[int, list[Process]] = {}
    for process in seen.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        for child in children.pop(todo.pop(), []):
            found.append(child)
            todo.append(child.pid)
    return found


def kill(pids: Iterable[int], number: int = 9) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def proportional(processes: Iterable[Process]) -> int:
    """Memory with shared pages counted once (PSS); a process that hides it counts with all its resident pages."""
    return sum(_pss(process) for process in processes)


def _pss(process: Process) -> int:
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return process.rss


def shared_memory() -> int:
    """Bytes held by ``/tmp``, ``/dev/shm`` and System V segments of this namespace: memory that no process is charged for."""
    total = 0
    for folder in ("/tmp", "/dev/shm"):
        try:
            found = os.statvfs(folder)
            total += (found.f_blocks - found.f_bfree) * found.f_frsize
        except OSError:
            pass
    try:
        with open("/proc/sysvipc/shm", "rb") as file:
            total += sum(int(line.split()[14]) for line in list(file)[1:])
    except (OSError, ValueError, IndexError):
        pass
    return total


def unlinked_bytes(pids: Iterable[int], memory: Iterable[str]) -> int:
    """Bytes of files on disk that these processes hold open and that have no name any more: no walk of folders finds them.

    ``memory``: folders whose file system is memory and not disk.
    """
    not_disk = {_device(path) for path in memory}
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        found.update(_open_unlinked(f"/proc/{pid}/fd", not_disk))
    return sum(found.values())


def _open_unlinked(folder: str, not_disk: set[int]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        path = f"{folder}/{name}"
        try:
            info = os.stat(path)
            nameless = info.st_nlink == 0 and (info.st_mode & 0o170000) == 0o100000 and info.st_dev not in not_disk
            if nameless and not os.readlink(path).startswith("/memfd:"):
                found[info.st_dev, info.st_ino] = info.st_blocks * 512
        except OSError:
            continue
    return found


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1
