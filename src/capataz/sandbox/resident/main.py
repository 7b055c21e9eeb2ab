"""The helper's loop: frames from the worker, reports of lanes, connections to forwarded ports."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import os
import select
import sys
import time

from . import commands, files, kernel, lane, wire


class Helper:
    """One session's helper. It ends when the worker's side of the control socket closes, and the sandbox with it."""

    def __init__(self, root: str, control: int) -> None:
        self._control = control
        self._socket = _socket.socket(fileno=control)
        self._decoder = wire.Decoder()
        self._fds: list[int] = []
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._listeners: dict[int, tuple[_socket.socket, int]] = {}
        self._cgroups: list[int] = []
        self._rlimits: list[tuple[int, int]] = []
        self._commands = self._make_commands(False, commands.Limits())
        self._handlers = {
            wire.INIT: self._init, wire.RUN: self._run, wire.KILL: self._kill, wire.STAT: self._stat, wire.READ: self._read,
            wire.WRITE: self._write, wire.LIST: self._list, wire.REMOVE: self._remove, wire.LISTEN: self._listen,
            wire.UNLINKED: self._unlinked,
        }

    def serve(self) -> None:
        self._send(wire.pack(wire.HELLO, 0, os.getpid()))
        while True:
            wait = self._commands.tend()
            for fd, _ in self._poll.poll(None if wait is None else max(1, int(wait * 1000))):
                if fd == self._control:
                    self._receive()
                elif fd in self._listeners:
                    self._accept(fd)
                else:
                    self._commands.readable(fd)

    def _receive(self) -> None:
        data = lane.receive(self._socket, self._fds)
        if not data:
            self.end()
        for frame in self._decoder.feed(data):
            self._handle(frame)

    def end(self) -> None:
        """The worker is gone: so is the sandbox. In a pid namespace the kernel does the rest."""
        self._commands.end()
        os._exit(0)

    def _handle(self, frame: wire.Frame) -> None:
        try:
            self._handlers[frame.op](frame)
        except files.Refused as refused:
            self._fail(frame, refused.kind, refused.message)
        except OSError as error:
            self._fail(frame, wire.BROKEN, f"{type(error).__name__}: {error}")
        except MemoryError:
            self._fail(frame, wire.USAGE, "not enough memory for this operation")

    def _send(self, data: bytes, fds: list[int] | None = None) -> None:
        lane.send(self._socket, data, fds or ())

    def _ok(self, frame: wire.Frame, a: int = 0, b: int = 0, *blobs: bytes) -> None:
        self._send(wire.pack(wire.OK, frame.id, a, b, *blobs))

    def _fail(self, frame: wire.Frame, kind: int, message: str) -> None:
        self._send(wire.pack(wire.FAIL, frame.id, kind, 0, message.encode("utf-8", "replace")))

    def _take(self, count: int) -> list[int]:
        taken, self._fds = self._fds[:count], self._fds[count:]
        return taken

    # ---- commands

    def _init(self, frame: wire.Frame) -> None:
        memory, pids, cpu_s, file_bytes, flags, poll_s = wire.INIT_FIELDS.unpack(frame.blobs[0])
        self._cgroups = self._take(frame.a)
        self._ok(frame)                        # what follows takes a while and nobody has to wait for it
        import resource

        kernel.set_dumpable(False)
        watched = flags & wire.FLAG_WATCH
        limits = commands.Limits(memory if watched else 0, pids if watched else 0, cpu_s, poll_s)
        self._rlimits = [(resource.RLIMIT_CORE, 0)]
        if file_bytes:
            self._rlimits.append((resource.RLIMIT_FSIZE, file_bytes))
        if pids and watched:
            # only a backstop, well above the limit, so that the watch sees the limit passed and can say so
            self._rlimits.append((resource.RLIMIT_NPROC, max(2 * pids, pids + 256)))
        self._commands = self._make_commands(bool(flags & wire.FLAG_PID1), limits)
        self._commands.warm_up()

    def _make_commands(self, alone: bool, limits: commands.Limits) -> commands.Commands:
        return commands.Commands(alone, limits, self._new_lane, self._lane_lost, self._done)

    def _new_lane(self) -> lane.Lane:
        runner = lane.start(self._cgroups, self._rlimits)
        self._poll.register(runner.socket.fileno(), select.POLLIN)
        return runner

    def _lane_lost(self, runner: lane.Lane) -> None:
        self._poll.unregister(runner.socket.fileno())

    def _run(self, frame: wire.Frame) -> None:
        fds = self._take(3)
        try:
            self._commands.start(frame, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _kill(self, frame: wire.Frame) -> None:
        self._commands.kill(frame.id, frame.a)

    def _done(self, command: commands.Command) -> None:
        status = -1 if command.status is None else command.status
        duration = time.monotonic() - command.started
        body = wire.ENDED.pack(status, command.rss, command.peak, duration)
        self._send(wire.pack(wire.DONE, command.id, int(command.status is not None), command.why, body))

    # ---- files

    def _stat(self, frame: wire.Frame) -> None:
        kind, size, mode = files.stat_file(self._root, frame.blobs[0])
        self._ok(frame, size, mode, kind)

    def _read(self, frame: wire.Frame) -> None:
        data, size = files.read_file(self._root, frame.blobs[0], frame.a, frame.b)
        self._ok(frame, size, 0, data)

    def _write(self, frame: wire.Frame) -> None:
        path, data = frame.blobs
        files.write_file(self._root, path, data, frame.a)
        self._ok(frame)

    def _list(self, frame: wire.Frame) -> None:
        found = files.list_folder(self._root, frame.blobs[0], frame.a, frame.b)
        entries = b"".join(wire.ENTRY.pack(kind, size) for _, kind, size in found)
        self._ok(frame, len(found), 0, b"\0".join(path for path, _, _ in found), entries)

    def _remove(self, frame: wire.Frame) -> None:
        files.remove(self._root, frame.blobs[0])
        self._ok(frame)

    def _unlinked(self, frame: wire.Frame) -> None:
        self._ok(frame, self._commands.unlinked_bytes())

    # ---- forwarded ports

    def _listen(self, frame: wire.Frame) -> None:
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", frame.a))
        listener.listen(64)
        listener.setblocking(False)
        self._listeners[listener.fileno()] = (listener, frame.a)
        self._poll.register(listener.fileno(), select.POLLIN)
        self._ok(frame)

    def _accept(self, fd: int) -> None:
        """Hands the accepted connection itself to the worker, which joins it to its unix socket."""
        listener, port = self._listeners[fd]
        try:
            connection, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        self._send(wire.pack(wire.CONNECTED, 0, port), [connection])
        os.close(connection)


def main() -> None:
    """``argv``: the folder that file operations serve, the number of the control socket, ``inside`` or ``local``."""
    root, control, where = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.closerange(3, control)
    os.closerange(control + 1, 1 << 16)
    os.set_inheritable(control, False)
    if where == "local":
        kernel.become_subreaper()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    helper = Helper(root, control)
    try:
        helper.serve()
    except (BrokenPipeError, ConnectionError):
        helper.end()
