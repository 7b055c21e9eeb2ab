"""The commands that run now: started, watched, killed with their whole tree, reported."""

from __future__ import annotations

import os
import time

from . import lane, tree, wire

TYPE_CHECKING = False                          # typing itself would cost more than the rest of the start
if TYPE_CHECKING:
    from collections.abc import Callable

_NUDGE_S = 0.002                               # how often a dying tree is looked at
_PATIENCE_S = 0.05                             # a tree that forks faster than this kills it is killed by process 1 at a stroke
_LAST_S = 0.4                                  # ... at the price of the session's other commands, if there are any
_SPARE_LANES = 4


class Command:
    """One command and the lane it runs in."""

    def __init__(self, id: int, runner: lane.Lane) -> None:
        self.id, self.lane = id, runner
        self.started = time.monotonic()
        self.why = wire.NOT_KILLED
        self.status: int | None = None
        self.rss = 0
        self.peak = 0
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

    def __init__(
        self, alone: bool, limits: Limits, new_lane: Callable[[], lane.Lane], lost: Callable[[lane.Lane], None], done: Callable[[Command], None]
    ) -> None:
        self._alone = alone
        self._limits = limits
        self._new_lane = new_lane
        self._lost = lost
        self._done = done
        self._idle: list[lane.Lane] = []
        self._busy: dict[int, Command] = {}    # by the lane's descriptor
        self._next_look = 0.0
        self._gone_cpu_s = 0.0

    def warm_up(self) -> None:
        """Has a lane ready before the first command asks for it."""
        if not self._idle:
            self._idle.append(self._new_lane())

    def start(self, frame: wire.Frame, fds: list[int]) -> None:
        """Hands the command to a free lane, a new one when there is none."""
        while True:
            runner = self._idle.pop() if self._idle else self._new_lane()
            self._busy[runner.socket.fileno()] = Command(frame.id, runner)
            try:
                runner.send(wire.pack(wire.RUN, frame.id, 0, 0, *frame.blobs), fds)
            except OSError:                    # the lane was killed while it was idle
                del self._busy[runner.socket.fileno()]
                self._bury(runner)
                continue
            break
        if len(self._busy) == 1:
            self._next_look = time.monotonic() + self._limits.poll_s

    def kill(self, id: int, why: int) -> None:
        for command in list(self._busy.values()):
            if command.id == id:
                self._kill(command, why)

    def _kill(self, command: Command, why: int) -> None:
        if command.why == wire.NOT_KILLED and command.status is None:
            command.why = why
        if not command.dying_since:
            command.dying_since = time.monotonic()
        self._strike(command)

    def _strike(self, command: Command) -> None:
        """One blow at the tree. From process 1 one call reaches everything else, however fast it forks."""
        waited = time.monotonic() - command.dying_since
        if self._alone and (waited > _LAST_S or (waited > _PATIENCE_S and len(self._busy) == 1)):
            for other in self._busy.values():
                if other.why == wire.NOT_KILLED and other.status is None:
                    other.why = wire.SESSION
                other.dying_since = other.dying_since or command.dying_since
            tree.kill([-1])
            return
        tree.kill(process.pid for process in tree.below(command.lane.pid, tree.processes()) if process.state != b"Z")

    def readable(self, fd: int) -> None:
        """Takes what a lane said."""
        command = self._busy.get(fd)
        if command is None:
            self._idle_lane_died(fd)
            return
        data = command.lane.socket.recv(4096)
        if not data:
            self._lane_died(command)
            return
        if len(data) >= lane.REPORT.size:
            command.status, command.rss, others = lane.REPORT.unpack(data[: lane.REPORT.size])
            data = data[lane.REPORT.size :]
            if others and not data:
                self._kill(command, wire.NOT_KILLED)
                return
        del self._busy[fd]
        self._keep(command.lane)
        self._done(command)

    def _keep(self, runner: lane.Lane) -> None:
        if len(self._idle) < _SPARE_LANES:
            self._idle.append(runner)
        else:
            self._bury(runner)

    def _idle_lane_died(self, fd: int) -> None:
        for runner in self._idle:
            if runner.socket.fileno() == fd:
                self._idle.remove(runner)
                self._bury(runner)
                return

    def _lane_died(self, command: Command) -> None:
        """Somebody inside (or our own stroke) killed the lane: what it had adopted is process 1's now, and is killed."""
        del self._busy[command.lane.socket.fileno()]
        self._bury(command.lane)
        if command.status is None and command.why == wire.NOT_KILLED:
            command.why = wire.LOST
        if self._alone:
            self._kill_strays()
        self._done(command)

    def _bury(self, runner: lane.Lane) -> None:
        self._lost(runner)
        runner.close()
        tree.kill([runner.pid])
        found = _reap(runner.pid, 0)
        self._gone_cpu_s += found

    def _kill_strays(self) -> None:
        """Kills all that no living lane answers for; with no command left, simply everything."""
        lanes = {runner.pid for runner in self._idle} | {command.lane.pid for command in self._busy.values()}
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            seen = tree.processes()
            safe = {os.getpid(), *lanes, *(p.pid for pid in lanes for p in tree.below(pid, seen))}
            strays = [pid for pid in seen if pid not in safe]
            if not strays:
                return
            tree.kill(strays if self._busy else [-1])
            for pid in strays:
                _reap(pid, os.WNOHANG)
            time.sleep(0.001)

    def end(self) -> None:
        """Kills all that was ever started here and is still there (orphans are this process's children)."""
        deadline = time.monotonic() + (0 if self._alone else 5)
        while time.monotonic() < deadline:
            left = tree.below(os.getpid(), tree.processes())
            if not left:
                return
            tree.kill(process.pid for process in left)
            for process in left:
                _reap(process.pid, os.WNOHANG)
            time.sleep(0.001)

    def unlinked_bytes(self) -> int:
        """See ``tree.unlinked_bytes``, of all that runs in this session."""
        seen = tree.processes()
        pids = [process.pid for command in self._busy.values() for process in tree.below(command.lane.pid, seen)]
        return tree.unlinked_bytes(pids, ("/tmp", "/dev/shm") if self._alone else ("/dev/shm",))

    def tend(self) -> float | None:
        """Does what is due; gives the seconds until it wants to be called again (None: not until something happens)."""
        now = time.monotonic()
        dying = [command for command in self._busy.values() if command.dying_since]
        for command in dying:
            self._strike(command)
        if self._busy and self._limits.any and now >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + max(self._limits.poll_s, 4 * (time.monotonic() - now))
        if dying:
            return _NUDGE_S
        return max(0.0, self._next_look - time.monotonic()) if self._busy and self._limits.any else None

    def _look(self) -> None:
        """Measures every tree and kills the one to blame when the session is over a limit."""
        seen = tree.processes()
        trees = {command: tree.below(command.lane.pid, seen) for command in self._busy.values()}
        memory = {command: sum(p.rss for p in found) for command, found in trees.items()}
        for command in trees:
            command.peak = max(command.peak, memory[command])
        limits = self._limits
        if limits.pids and sum(p.threads for found in trees.values() for p in found) > limits.pids:
            self._kill(max(trees, key=lambda c: sum(p.threads for p in trees[c])), wire.PIDS)
        elif limits.memory and self._over_memory(trees, memory):
            self._kill(max(memory, key=lambda c: memory[c]), wire.MEMORY)
        elif limits.cpu_s and self._cpu_s(trees, seen) > limits.cpu_s:
            self._kill(max(trees, key=lambda c: sum(p.cpu_s for p in trees[c])), wire.CPU)

    def _over_memory(self, trees: dict[Command, list[tree.Process]], memory: dict[Command, int]) -> bool:
        shared = tree.shared_memory() if self._alone else 0
        if sum(memory.values()) + shared <= self._limits.memory:
            return False
        # resident pages that forks share were counted for each of them: count exactly before killing
        return sum(tree.proportional(found) for found in trees.values()) + shared > self._limits.memory

    def _cpu_s(self, trees: dict[Command, list[tree.Process]], seen: dict[int, tree.Process]) -> float:
        """Of the session so far: living trees, what lanes have waited for, and lanes that are gone."""
        lanes = [runner.pid for runner in self._idle] + [command.lane.pid for command in trees]
        waited_for = sum(seen[pid].cpu_s for pid in lanes if pid in seen)
        return self._gone_cpu_s + waited_for + sum(p.cpu_s for found in trees.values() for p in found)


def _reap(pid: int, flags: int) -> float:
    """Reaps a child if it is one; its processor time with that of its children."""
    try:
        _, _, usage = os.wait4(pid, flags)
    except ChildProcessError:
        return 0.0
    return usage.ru_utime + usage.ru_stime
