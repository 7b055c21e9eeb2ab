"""The commands that run now: started, watched, killed with their whole tree, reported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from . import spawn, tree, wire

_NUDGE_S = 0.002                               # how often a dying tree is looked at
_PATIENCE_S = 0.4                              # after this a tree that forks faster than it is killed takes the session's others with it


class Command:
    """One command and its stub."""

    def __init__(self, id: int, stub: int, report: int) -> None:
        self.id, self.stub, self.report = id, stub, report
        self.started = time.monotonic()
        self.why = wire.NOT_KILLED
        self.status: int | None = None
        self.rss = 0
        self.peak = 0
        self.cpu_s = 0.0
        self.seen_cpu_s = 0.0
        self.dying_since = 0.0


class Limits:
    """What the helper itself watches; 0 means no limit. Memory and pids are the worker's where it has a cgroup."""

    def __init__(self, memory: int = 0, pids: int = 0, cpu_s: float = 0, poll_s: float = 0.025) -> None:
        self.memory, self.pids, self.cpu_s, self.poll_s = memory, pids, cpu_s, poll_s

    @property
    def any(self) -> bool:
        return bool(self.memory or self.pids or self.cpu_s)


class Commands:
    """All running commands. ``alone``: this is process 1 of a pid namespace, so "everything else" can be killed at once."""

    def __init__(self, alone: bool, limits: Limits, done: Callable[[Command], None]) -> None:
        self._alone = alone
        self._limits = limits
        self._done = done
        self._by_report: dict[int, Command] = {}
        self._next_look = 0.0
        self._spent_cpu_s = 0.0

    def __len__(self) -> int:
        return len(self._by_report)

    @property
    def reports(self) -> list[int]:
        return list(self._by_report)

    def start(self, id: int, order: spawn.Order, keep: list[int]) -> int:
        """Starts it; gives the descriptor to poll."""
        stub, report = spawn.start(order, keep)
        self._by_report[report] = Command(id, stub, report)
        self._next_look = min(self._next_look, time.monotonic() + self._limits.poll_s) if len(self._by_report) > 1 else 0.0
        return report

    def kill(self, id: int, why: int) -> None:
        for command in list(self._by_report.values()):
            if command.id == id:
                self._kill(command, why)

    def _kill(self, command: Command, why: int) -> None:
        if command.why == wire.NOT_KILLED and command.status is None:
            command.why = why
        if not command.dying_since:
            command.dying_since = time.monotonic()
        self._strike(command)

    def _strike(self, command: Command) -> None:
        """One blow at the tree. Alone in the namespace with one command, one call reaches everything, however fast it forks."""
        overdue = time.monotonic() - command.dying_since > _PATIENCE_S
        if self._alone and (overdue or len(self._by_report) == 1):
            for other in self._by_report.values():
                if other.why == wire.NOT_KILLED and other.status is None:
                    other.why = wire.SESSION
                other.dying_since = other.dying_since or command.dying_since
            tree.kill([-1])
            return
        tree.kill(process.pid for process in tree.below(command.stub, tree.processes()) if process.state != b"Z")

    def readable(self, report: int) -> bool:
        """Takes what a stub reported; True when its command is over and the descriptor closed."""
        command = self._by_report[report]
        data = os.read(report, spawn.REPORT.size)
        if len(data) == spawn.REPORT.size:
            command.status, command.rss, command.cpu_s, others = spawn.REPORT.unpack(data)
            if others:
                self._kill(command, wire.NOT_KILLED)
            return False
        return self._ended(command)

    def _ended(self, command: Command) -> bool:
        """The stub is gone. If it did not go by itself, what it had adopted is a stray of process 1 now."""
        os.close(command.report)
        status = _reap(command.stub)
        del self._by_report[command.report]
        if status != 0 and command.status is None and command.why == wire.NOT_KILLED:
            command.why = wire.LOST
        if status != 0:
            self._kill_strays()
        self._spent_cpu_s += command.cpu_s or command.seen_cpu_s
        self._done(command)
        return True

    def _kill_strays(self) -> None:
        """Everything that no living stub answers for. Only in a namespace: elsewhere strays are not told from strangers."""
        if not self._alone:
            return
        stubs = {command.stub for command in self._by_report.values()}
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            seen = tree.processes()
            safe = {os.getpid(), *stubs, *(p.pid for stub in stubs for p in tree.below(stub, seen))}
            strays = [pid for pid in seen if pid not in safe]
            if not strays:
                return
            tree.kill(strays if stubs else [-1])
            for pid in strays:
                _reap(pid, os.WNOHANG)
            time.sleep(0.001)

    def tend(self) -> float | None:
        """Does what is due; gives the seconds until it wants to be called again (None: not until something happens)."""
        now = time.monotonic()
        dying = [command for command in self._by_report.values() if command.dying_since]
        for command in dying:
            self._strike(command)
        if self._by_report and self._limits.any and now >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + max(self._limits.poll_s, 4 * (time.monotonic() - now))
        if dying:
            return _NUDGE_S
        return max(0.0, self._next_look - time.monotonic()) if self._by_report and self._limits.any else None

    def _look(self) -> None:
        """Measures every tree and kills the one to blame when the session is over a limit."""
        seen = tree.processes()
        trees = {command: tree.below(command.stub, seen) for command in self._by_report.values()}
        memory = {command: sum(p.rss for p in found) for command, found in trees.items()}
        for command, found in trees.items():
            command.peak = max(command.peak, memory[command])
            stub = seen.get(command.stub)
            command.seen_cpu_s = sum(p.cpu_s for p in found) + (stub.cpu_s if stub else 0)
        limits = self._limits
        if limits.pids and sum(p.threads for found in trees.values() for p in found) > limits.pids:
            self._kill(max(trees, key=lambda c: sum(p.threads for p in trees[c])), wire.PIDS)
        elif limits.memory and self._over_memory(trees, memory):
            self._kill(max(memory, key=lambda c: memory[c]), wire.MEMORY)
        elif limits.cpu_s and self._spent_cpu_s + sum(c.seen_cpu_s for c in trees) > limits.cpu_s:
            self._kill(max(trees, key=lambda c: c.seen_cpu_s), wire.CPU)

    def _over_memory(self, trees: dict[Command, list[tree.Process]], memory: dict[Command, int]) -> bool:
        shared = tree.shared_memory() if self._alone else 0
        if sum(memory.values()) + shared <= self._limits.memory:
            return False
        # resident pages that forks share were counted for each of them: count exactly before killing
        return sum(tree.proportional(found) for found in trees.values()) + shared > self._limits.memory


def _reap(pid: int, flags: int = 0) -> int:
    try:
        return os.waitpid(pid, flags)[1]
    except ChildProcessError:
        return 0
