"""Control groups, version 1 and 2, where this process may make them: the exact limit of memory and processes of a session.

The helper stays outside; each command enters before it becomes the program, through descriptors that the worker opened.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

_PREFIX = "capataz-"
_FACTS: dict[tuple[int, str], tuple[str, str]] = {   # (version, controller): (limit file, file that commands enter by)
    (1, "memory"): ("memory.limit_in_bytes", "tasks"),
    (1, "pids"): ("pids.max", "tasks"),
    (2, "memory"): ("memory.max", "cgroup.procs"),
    (2, "pids"): ("pids.max", "cgroup.procs"),
}


class Cgroup:
    """The group of one session. ``folders``: one for version 2, one a controller for version 1."""

    def __init__(self, version: int, folders: dict[str, Path]) -> None:
        self._version = version
        self.folders = folders
        self._seen: dict[str, int] = {}
        self.entries: list[int] = []

    def open(self, memory_bytes: int, pids: int) -> None:
        """Makes the folders and sets the limits. Raises ``OSError``; ``remove`` undoes what was made."""
        for controller, folder in self.folders.items():
            folder.mkdir(exist_ok=self._version == 2)
            limit, _ = _FACTS[self._version, controller]
            value = memory_bytes if controller == "memory" else pids
            if value:
                (folder / limit).write_text(str(value))
        self._no_swap(memory_bytes)
        for folder in dict.fromkeys(self.folders.values()):
            _, entry = _FACTS[self._version, "memory"]
            self.entries.append(os.open(folder / entry, os.O_WRONLY | os.O_CLOEXEC))
        self._seen = self._counts()

    def _no_swap(self, memory_bytes: int) -> None:
        """Swap would be a second memory beside the limit; kernels without swap accounting have no such file."""
        folder = self.folders.get("memory")
        if folder is None or not memory_bytes:
            return
        with suppress(OSError):
            if self._version == 1:
                (folder / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
            else:
                (folder / "memory.swap.max").write_text("0")

    def passed(self) -> Literal["memory", "pids"] | None:
        """Which limit was hit since the last call."""
        counts = self._counts()
        before, self._seen = self._seen, counts
        if counts["memory"] > before["memory"]:
            return "memory"
        return "pids" if counts["pids"] > before["pids"] else None

    def _counts(self) -> dict[str, int]:
        events = "memory.oom_control" if self._version == 1 else "memory.events"
        return {"memory": self._count("memory", events, b"oom_kill"), "pids": self._count("pids", "pids.events", b"max")}

    def _count(self, controller: str, name: str, key: bytes) -> int:
        folder = self.folders.get(controller)
        if folder is None:
            return 0
        with suppress(OSError, ValueError, IndexError):
            for line in (folder / name).read_bytes().splitlines():
                words = line.split()
                if words and words[0] == key:
                    return int(words[1])
        return 0

    def peak_bytes(self) -> int:
        """The most memory that the session's commands used together so far; 0 if the kernel does not say."""
        folder = self.folders.get("memory")
        with suppress(OSError, ValueError):
            if folder is not None:
                return int((folder / ("memory.max_usage_in_bytes" if self._version == 1 else "memory.peak")).read_text())
        return 0

    def close(self) -> None:
        for fd in self.entries:
            os.close(fd)
        self.entries.clear()

    def remove(self) -> bool:
        """Removes the folders; False if a process is still in one. Idempotent."""
        self.close()
        return all([_remove(folder) for folder in dict.fromkeys(self.folders.values())])


def _remove(folder: Path, patience_s: float = 0.003) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)                  # the last process is dead, the kernel is still letting go
        else:
            return True


def remove_stale(folders: list[Path]) -> bool:
    """Removes groups that a killed worker left; False if one is still in use. Its processes died with it: those that use much
    memory need a moment until they have gone."""
    return all([_remove(folder, patience_s=1.0) for folder in folders if folder.name.startswith(_PREFIX)])


def sweep(older_than_s: float = 60.0) -> None:
    """Removes empty groups beside ours whose worker (its pid is in their name) is gone, whatever its runtime folder was.

    One that is young is left: it may belong to a worker that this process cannot see and that has not entered it yet.
    """
    parents = _usable_parents(os.getpid())
    for parent in set(parents[1].values()) if parents else ():
        for folder in parent.glob(f"{_PREFIX}*-*"):
            pid = folder.name.removeprefix(_PREFIX).removeprefix("probe-").partition("-")[0]
            with suppress(OSError):
                if pid.isdigit() and not Path("/proc", pid).exists() and time.time() - folder.stat().st_ctime > older_than_s:
                    folder.rmdir()


def make(name: str) -> Cgroup | None:
    """A group called ``name``, not yet opened; None where this process may not make one that limits anything."""
    parents = _usable_parents(os.getpid())
    if parents is None:
        return None
    version, folders = parents
    return Cgroup(version, {controller: folder / (_PREFIX + name) for controller, folder in folders.items()})


@lru_cache(maxsize=1)
def _usable_parents(pid: int) -> tuple[int, dict[str, Path]] | None:
    """Where groups can be made, found by doing it once (``pid`` keeps a forked worker from using its parent's answer)."""
    for version, folders in _candidates():
        group = Cgroup(version, {controller: folder / f"{_PREFIX}probe-{pid}" for controller, folder in folders.items()})
        try:
            group.open(1 << 30, 64)
            _enter_once(group)
        except OSError:
            continue
        finally:
            group.remove()
        return version, folders
    return None


def _enter_once(group: Cgroup) -> None:
    """Moves a child in: a folder that can be made may still not be entered (systemd's delegation rules)."""
    child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for fd in group.entries:
            os.write(fd, str(child.pid).encode())
    finally:
        child.communicate()


def _candidates() -> list[tuple[int, dict[str, Path]]]:
    mounts = _mounts()
    own = _own_paths()
    found: list[tuple[int, dict[str, Path]]] = []
    v1 = {name: _below(mounts[name], own[name]) for name in ("memory", "pids") if name in mounts and name in own}
    if len(v1) == 2:
        found.append((1, v1))
    if "" in mounts and "" in own:
        top = mounts[""][1]
        folder = _below(mounts[""], own[""])
        while True:
            if _delegates(folder):
                found.append((2, {"memory": folder, "pids": folder}))
            if folder in (top, folder.parent):
                break
            folder = folder.parent
    return found


def _delegates(folder: Path) -> bool:
    with suppress(OSError):
        return {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split())
    return False


def _mounts() -> dict[str, tuple[str, Path]]:
    """Controller (empty: version 2) to (root of the mount, where it is mounted)."""
    found: dict[str, tuple[str, Path]] = {}
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            place = fields[3], Path(fields[4].replace("\\040", " "))
            if kind[0] == "cgroup2":
                found.setdefault("", place)
            elif kind[0] == "cgroup":
                for controller in kind[2].split(","):
                    found.setdefault(controller, place)
    return found


def _own_paths() -> dict[str, str]:
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                found[controller] = path
    return found


def _below(mount: tuple[str, Path], path: str) -> Path:
    root, place = mount
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return place / path.lstrip("/")
