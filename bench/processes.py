"""Memory and processor time of a process and all that it starts, seen from outside."""

from __future__ import annotations

import os
import threading
from pathlib import Path

SAMPLE_S = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """Looks at a process while it lives. ``others_kib``: the most peak memory that its descendants had together at one time."""

    def __init__(self, pid: int, server: int | None) -> None:
        super().__init__(daemon=True)
        self.others_kib = 0
        self.cpu_s: float | None = None
        self.server_cpu_s = 0.0
        self._root = pid
        self._server = server
        self._parents: dict[int, int] = {}
        self._marks: list[tuple[float, float]] = []
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.others_kib = max(self.others_kib, sum(_peak_kib(pid) for pid in self._family(self._root) if pid != self._root))

    def stop(self) -> None:
        self._done.set()
        self.join()

    def mark(self) -> None:
        """The measured part begins, or ends."""
        own = sum(_cpu_s(pid) for pid in self._family(self._root))
        servers = sum(_cpu_s(pid) for pid in self._family(self._server)) if self._server else 0.0
        self._marks.append((own, servers))
        if len(self._marks) == 2:
            (own_0, servers_0), (own_1, servers_1) = self._marks
            self.cpu_s, self.server_cpu_s = own_1 - own_0, servers_1 - servers_0

    def _family(self, root: int) -> set[int]:
        """The process and its living descendants."""
        present = {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()}
        parents = {pid: parent for pid, parent in self._parents.items() if pid in present}
        for pid in present - parents.keys():
            parents[pid] = _parent(pid)
        self._parents = parents
        found = {root}
        for _ in range(4):
            found |= {pid for pid, parent in parents.items() if parent in found}
        return found


def _fields(pid: int) -> list[str]:
    """Of ``/proc/PID/stat``, from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def _cpu_s(pid: int) -> float:
    """Its own, and of the children that it has reaped."""
    return sum(int(ticks) for ticks in _fields(pid)[11:15]) / _TICKS


def _peak_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM:")), 0)
