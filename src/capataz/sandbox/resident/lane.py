"""A lane runs one command after another: a small process that adopts every orphan of its command.

Being a subreaper is what makes "its whole process tree" exact: a process can leave the tree neither by ``setsid`` nor by a
double fork, and when the lane has no child left, the tree is gone. Being a process of its own that is there already is
what makes commands quick: it starts them by ``posix_spawn`` (no memory to copy), inside the control group it entered once.
"""

# Pathlib takes longer to import than the helper has to start:
# ruff: noqa: PTH110
from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import os
from struct import Struct, pack, unpack

from . import kernel, wire

TYPE_CHECKING = False                          # typing itself would cost more than the rest of the start
if TYPE_CHECKING:
    from collections.abc import Sequence

REPORT = Struct("<iq?")                        # wait status, peak rss bytes, whether other processes of the tree are still there
GONE = b"g"                                    # sent after a report with others: now they are gone too
_RESET = [signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, getattr(signal, "SIGXFSZ", signal.SIGPIPE)]


class Lane:
    """The helper's handle: the lane's pid and the socket to it."""

    __slots__ = ("pid", "socket")

    def __init__(self, pid: int, sock: _socket.socket) -> None:
        self.pid, self.socket = pid, sock

    def send(self, data: bytes, fds: Sequence[int]) -> None:
        send(self.socket, data, fds)

    def close(self) -> None:
        self.socket.close()


def send(sock: _socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Sends all of ``data``, the descriptors with its first byte."""
    view = memoryview(data)
    extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pack(f"{len(fds)}i", *fds))] if fds else []
    while view:
        view = view[sock.sendmsg([view], extra) :]
        extra = []


def receive(sock: _socket.socket, fds: list[int]) -> bytes:
    """The next bytes; descriptors that come along are added to ``fds``."""
    data, ancillary, _, _ = sock.recvmsg(256 << 10, _socket.CMSG_SPACE(4 * 16), getattr(_socket, "MSG_CMSG_CLOEXEC", 0))
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    return data


def start(cgroups: Sequence[int], rlimits: Sequence[tuple[int, int]]) -> Lane:
    """Forks a lane that has entered the control groups and has the limits that its commands inherit."""
    ours, theirs = _pair()
    pid = os.fork()
    if pid == 0:
        try:
            for fd in cgroups:
                os.write(fd, b"0")
            _only(theirs.fileno())
            kernel.become_subreaper()
            kernel.die_with_parent()
            for number, value in rlimits:
                _limit(number, value)
            os.umask(0o022)
            _serve(theirs)
        finally:
            os._exit(1)
    theirs.close()
    return Lane(pid, ours)


def _pair() -> tuple[_socket.socket, _socket.socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)


def _only(keep: int) -> None:
    os.closerange(0, keep)
    os.closerange(keep + 1, 1 << 16)
    for number in range(3):                    # so that no descriptor of a command ever gets one of these numbers
        os.open("/dev/null", os.O_RDWR)
        assert number != keep


def _limit(number: int, value: int) -> None:
    import resource  # here, since the helper's start must not pay for it

    hard = resource.getrlimit(number)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(number, (value, value))


def _serve(sock: _socket.socket) -> None:
    decoder = wire.Decoder()
    fds: list[int] = []
    while data := receive(sock, fds):
        for frame in decoder.feed(data):
            given, fds = fds[:3], fds[3:]
            _run(sock, frame, given)


def _run(sock: _socket.socket, frame: wire.Frame, fds: list[int]) -> None:
    argv, env, cwd = frame.blobs
    child, status = 0, 0
    try:
        child = _spawn(argv.split(b"\0"), env.split(b"\0") if env else [], cwd, fds)
    except _NotStarted as error:
        status = error.code << 8
        try:
            os.write(fds[2], error.line)
        except OSError:
            pass
    for fd in fds:
        os.close(fd)
    rss = 0
    while child:
        pid, status, usage = os.wait4(-1, 0)
        if pid == child:
            rss = usage.ru_maxrss << 10
            break
    others = _others()
    sock.send(REPORT.pack(status, rss, others))
    if others:
        _wait_for_all()
        sock.send(GONE)


def _others() -> bool:
    """Whether processes of the tree outlive the command (the ended ones among them are reaped here)."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _wait_for_all() -> None:
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


class _NotStarted(Exception):
    def __init__(self, code: int, what: bytes, why: str) -> None:
        super().__init__()
        self.code = code
        self.line = b"capataz: cannot " + what + b": " + why.encode() + b"\n"


def _spawn(argv: list[bytes], env: list[bytes], cwd: bytes, fds: list[int]) -> int:
    """The command's pid. Raises ``_NotStarted`` with 127 for a missing program and 126 for anything else."""
    try:
        os.chdir(cwd)
    except OSError as error:
        raise _NotStarted(126, b"enter " + cwd, error.strerror or "") from None
    pairs = dict(pair.split(b"=", 1) for pair in env)
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
    code, problem = 127, "No such file or directory"
    for candidate in _candidates(argv[0], pairs.get(b"PATH", b"/usr/bin:/bin")):
        try:
            child = os.posix_spawn(candidate, argv, pairs, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESET)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            code, problem = 126, error.strerror or "cannot be executed"
            continue
        _volunteer_for_oom(child)
        return child
    raise _NotStarted(code, b"run " + argv[0], problem)


def _candidates(name: bytes, path: bytes) -> list[bytes]:
    if b"/" in name:
        return [name]
    found = [(folder or b".") + b"/" + name for folder in path.split(b":")]
    return [place for place in found if os.path.exists(place)]


def _volunteer_for_oom(pid: int) -> None:
    """When memory runs out, commands go before the helper."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"500")
        os.close(fd)
    except OSError:
        pass
