"""Starting one command: a stub that adopts every orphan of the command, and the command itself.

The stub is what makes "its whole process tree" exact: it is a subreaper, so a process can leave the tree neither by
``setsid`` nor by a double fork, and when the stub has no child left, the tree is gone.
"""

from __future__ import annotations

import _signal as signal
import os
import resource
from collections.abc import Sequence
from struct import Struct

from . import kernel

REPORT = Struct("<iqd?")                       # wait status, peak rss bytes, cpu seconds, whether others are still there
_RESET = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, getattr(signal, "SIGXFSZ", signal.SIGPIPE))


class Order:
    """What to run. ``fds``: stdin, stdout, stderr. ``cgroups``: open ``tasks`` or ``cgroup.procs`` files to enter."""

    __slots__ = ("argv", "cgroups", "cwd", "env", "fds", "rlimits")

    def __init__(
        self, argv: list[bytes], env: list[bytes], cwd: bytes, fds: Sequence[int], cgroups: Sequence[int], rlimits: Sequence[tuple[int, int]]
    ) -> None:
        self.argv, self.env, self.cwd, self.fds, self.cgroups, self.rlimits = argv, env, cwd, fds, cgroups, rlimits


def start(order: Order, keep: Sequence[int]) -> tuple[int, int]:
    """The stub's pid and the pipe that brings its ``REPORT`` and then, when the whole tree is gone, its end."""
    ours, theirs = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(ours)
        os.close(theirs)
        raise
    if pid == 0:
        try:
            _stub(order, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    return pid, ours


def _stub(order: Order, report: int) -> None:
    kernel.become_subreaper()
    child = os.fork()
    if child == 0:
        try:
            _command(order)
        finally:
            os._exit(126)
    _close_all_but(report)
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            os._exit(0)
        if pid == child:
            os.write(report, REPORT.pack(status, usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime, _others()))


def _others() -> bool:
    """Whether processes of the tree outlive the command (the ended ones among them are reaped here)."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _close_all_but(keep: int) -> None:
    os.closerange(0, keep)
    os.closerange(keep + 1, 1 << 16)


def _command(order: Order) -> None:
    os.setsid()
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    for fd in order.cgroups:
        os.write(fd, b"0")
    stdin, stdout, stderr = (os.dup(fd) for fd in order.fds)     # copies: their numbers may lie between 0 and 2
    for fd, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, number, inheritable=True)
    os.closerange(3, 1 << 16)
    # only now, with nothing of the helper open any more, may others of the sandbox look into this process
    kernel.set_dumpable(True)
    _volunteer_for_oom()
    for number, value in order.rlimits:
        _limit(number, value)
    os.umask(0o022)
    os.write(2, _enter_and_exec(order))
    os._exit(126 if _found_something else 127)


def _volunteer_for_oom() -> None:
    """When the host runs out of memory, the command goes first."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"500")
        os.close(fd)
    except OSError:
        pass


def _limit(number: int, value: int) -> None:
    hard = resource.getrlimit(number)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(number, (value, value))


_found_something = False


def _enter_and_exec(order: Order) -> bytes:
    """Becomes the command; gives one line when that is not possible."""
    global _found_something
    try:
        os.chdir(order.cwd)
    except OSError as error:
        _found_something = True
        return b"capataz: cannot enter " + order.cwd + b": " + (error.strerror or "").encode() + b"\n"
    env = dict(pair.split(b"=", 1) for pair in order.env)
    problem = "No such file or directory"
    for candidate in _candidates(order.argv[0], env.get(b"PATH", b"/usr/bin:/bin")):
        try:
            os.execve(candidate, order.argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _found_something = True
            problem = error.strerror or "cannot be executed"
    return b"capataz: cannot run " + order.argv[0] + b": " + problem.encode() + b"\n"


def _candidates(name: bytes, path: bytes) -> list[bytes]:
    if b"/" in name or not name:
        return [name]
    return [(folder or b".") + b"/" + name for folder in path.split(b":")]
