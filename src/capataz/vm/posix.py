"""Small Linux calls of program processes: dying with the parent, adopting orphans, finding descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_parent(parent: int) -> None:
    """SIGKILL to this process when its parent dies, also when that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pids: Iterable[int]) -> list[int]:
    """All descendants of ``pids`` that run now, parents before children; zombies count."""
    found: list[int] = []
    todo = list(pids)
    look = _children if Path("/proc/self/task", str(os.getpid()), "children").exists() else _by_scan()
    while todo:
        for child in look(todo.pop()):
            found.append(child)
            todo.append(child)
    return found


def _children(pid: int) -> list[int]:
    """Direct children as the kernel lists them (needs CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _by_scan() -> Callable[[int], list[int]]:
    by_parent: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            by_parent.setdefault(parent, []).append(int(entry.name))
    return lambda pid: by_parent.get(pid, [])


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone is fine. Only for children that are not reaped yet, and their descendants."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process group leader that is not reaped yet, its group and all descendants."""
    descendants = children_of([pid])
    kill_group(pid)
    for found in [pid, *descendants]:
        kill(found)


def sweep() -> None:
    """Kills and reaps every descendant of this process, orphans that it adopted included."""
    while True:
        for pid in children_of([os.getpid()]):
            kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
