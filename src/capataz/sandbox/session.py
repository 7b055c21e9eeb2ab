"""A session: one helper in one sandbox, its commands, its files. The same for every backend."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capataz.contracts.errors import SandboxFailed, UsageError
from capataz.contracts.sandbox import WORKSPACE, CommandResult, Reason, SandboxSpec
from capataz.sandbox.cgroup import Cgroup
from capataz.sandbox.channel import Channel
from capataz.sandbox.command import Running
from capataz.sandbox.disk import Gauge
from capataz.sandbox.files import HelperFiles
from capataz.sandbox.forward import Forwards
from capataz.sandbox.resident import wire

_KILL_PATIENCE_S = 15.0
_TICK_S = 0.05
_WHY: dict[int, Reason] = {
    wire.ASKED: "killed", wire.MEMORY: "memory", wire.PIDS: "pids", wire.CPU: "timeout", wire.LOST: "killed", wire.SESSION: "killed",
}


@dataclass(kw_only=True)
class Started:
    """What a backend hands to the session it started."""

    backend: str
    enforces: tuple[str, ...]
    sock: socket.socket                        # the worker's end of the control socket
    alone: bool                                # the helper is process 1 of a pid namespace
    end: Callable[[], Awaitable[None]]         # kills everything inside and returns when it is gone
    spool: Path                                # where spool files go
    environment: Mapping[str, str]             # of every command
    cwd: Callable[[str], str] = field(default=lambda path: path)     # a path of the contract to one that the helper knows
    cgroup: Cgroup | None = None
    gauge: Gauge | None = None


class HelperSession:
    """Implements the port's ``Session``. Nothing of it survives the worker: the sandbox dies with the control socket."""

    def __init__(self, spec: SandboxSpec, started: Started) -> None:
        self.backend = started.backend
        self.enforces = started.enforces
        self._spec = spec
        self._started = started
        self._running: dict[int, Running] = {}
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel = Channel(started.sock, self._on_frame, self._on_close)
        self._forwards = Forwards(spec.forwards)
        self._files = HelperFiles(self._channel)
        self._watch: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends_at = time.monotonic() + spec.limits.wall_s if spec.limits.wall_s else 0.0
        self._wall: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Waits for the helper and tells it the limits. Raises ``SandboxFailed`` when it does not come."""
        await self._hello
        limits, started = self._spec.limits, self._started
        watch = started.cgroup is None
        flags = (wire.FLAG_PID1 if started.alone else 0) | (wire.FLAG_WATCH if watch else 0)
        body = wire.INIT_FIELDS.pack(limits.memory_bytes, limits.pids, limits.cpu_s, limits.file_bytes or limits.disk_bytes, flags, 0.02)
        entries = started.cgroup.entries if started.cgroup else []
        await self._channel.request(wire.INIT, len(entries), 0, body, fds=entries)
        for port in self._spec.forwards:
            await self._channel.request(wire.LISTEN, port)
        if limits.wall_s:
            self._wall = asyncio.get_running_loop().call_later(limits.wall_s, self._wall_is_over)

    @property
    def files(self) -> HelperFiles:
        return self._files

    async def run(
        self,
        argv: tuple[str, ...] | list[str],
        *,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 120,
        output_limit: int = 64 << 10,
        spool_limit: int = 0,
        on_output: Callable[[bytes], Any] | None = None,
    ) -> CommandResult:
        """See the port."""
        words = _words(argv)
        pairs = _pairs({**self._started.environment, **(env or {})})
        if self._channel.closed:
            raise SandboxFailed("the sandbox session is over")
        if self._ends_at and time.monotonic() >= self._ends_at:
            return _refused("timeout", b"capataz: the session's wall time is over\n")
        place = os.fsencode(self._started.cwd(cwd if cwd.startswith("/") else f"{WORKSPACE}/{cwd}"))
        if b"\0" in place:
            raise UsageError("a working directory cannot hold a NUL byte")
        running = Running(self._channel.next_id(), self._started.spool, output_limit, spool_limit, on_output)
        self._running[running.id] = running
        try:
            # shielded: a call that is cancelled here must not close descriptors that are on their way
            await asyncio.shield(self._spawn(self._send_run(running, words, pairs, place, stdin)))
            return await self._outcome(running, timeout_s)
        except asyncio.CancelledError:
            self._kill_command(running, "killed")
            with suppress(Exception):
                await asyncio.shield(asyncio.wait({running.finished}, timeout=_KILL_PATIENCE_S))
            raise
        finally:
            running.close()
            self._running.pop(running.id, None)

    async def _send_run(self, running: Running, words: bytes, pairs: bytes, place: bytes, stdin: bytes) -> None:
        fds = running.open(stdin)
        try:
            await self._channel.send(wire.pack(wire.RUN, running.id, 0, 0, words, pairs, place), fds)
        finally:
            for fd in fds:
                os.close(fd)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._watch_limits())

    async def _outcome(self, running: Running, timeout_s: float) -> CommandResult:
        timer = asyncio.get_running_loop().call_later(timeout_s, self._kill_command, running, "timeout") if timeout_s > 0 else None
        try:
            await asyncio.shield(running.finished)
        finally:
            if timer is not None:
                timer.cancel()
        await self._last_look(running)
        return running.result()

    # ---- limits

    async def _watch_limits(self) -> None:
        """While commands run: the cgroup's counters and the disk, every 50 ms."""
        while self._running:
            await asyncio.sleep(_TICK_S)
            for running in list(self._running.values()):
                if running.output_over:
                    self._kill_command(running, "output")
            reason = self._passed()
            if reason is None and await self._disk_over():
                reason = "disk"
            if reason is not None:
                self._blame(reason)

    def _passed(self) -> Reason | None:
        return self._started.cgroup.passed() if self._started.cgroup else None

    def _blame(self, reason: Reason) -> None:
        """A limit of the session was passed: every command that runs now is part of it."""
        for running in list(self._running.values()):
            running.reason = running.reason or reason
            self._kill_command(running, reason)

    async def _disk_over(self) -> bool:
        gauge = self._started.gauge
        if gauge is None or not gauge.due():
            return False
        unlinked, started = 0, time.monotonic()
        with suppress(SandboxFailed):
            unlinked = (await self._channel.request(wire.UNLINKED)).a
        over = await asyncio.to_thread(gauge.measure, unlinked)
        gauge.rest(4 * (time.monotonic() - started))
        return over

    async def _last_look(self, running: Running) -> None:
        """A limit that was passed in the command's last moments, after the last tick."""
        reason = self._passed()
        gauge = self._started.gauge
        if reason is None and gauge is not None and running.reason is None and gauge.suspicious() and await self._disk_over():
            reason = "disk"
        if reason is not None:
            running.reason = running.reason or reason
            self._blame(reason)

    def _wall_is_over(self) -> None:
        for running in list(self._running.values()):
            self._kill_command(running, "timeout")

    # ---- killing

    def _kill_command(self, running: Running, reason: Reason) -> None:
        """Asks the helper; a helper that does not answer is broken, and the session is killed as a whole."""
        if running.finished.done() or running.kill_sent:
            return
        running.kill_sent = True
        running.reason = running.reason or reason
        self._spawn(self._send_kill(running))

    async def _send_kill(self, running: Running) -> None:
        with suppress(SandboxFailed):
            await self._channel.send(wire.pack(wire.KILL, running.id, wire.ASKED))
        done, _ = await asyncio.wait({running.finished}, timeout=_KILL_PATIENCE_S)
        if not done:
            await self.kill()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def kill(self) -> None:
        """Idempotent; returns when every process is gone and every mount with it."""
        if self._killing is None:
            self._killing = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._killing)

    async def _end(self) -> None:
        for running in list(self._running.values()):
            running.ended_by_us = True
        if self._wall is not None:
            self._wall.cancel()
        self._channel.close()
        if self._watch is not None:
            self._watch.cancel()
        await self._forwards.close()           # a connection of the sandbox that is still held would keep its network alive
        await self._started.end()

    # ---- what the helper says

    def _on_frame(self, frame: wire.Frame, fds: list[int]) -> None:
        if frame.op == wire.HELLO:
            if not self._hello.done():
                self._hello.set_result(None)
        elif frame.op == wire.CONNECTED:
            self._forwards.connected(frame.a, fds)
        elif frame.op == wire.FAIL and frame.id in self._running:
            message = frame.blobs[0].decode("utf-8", "replace") if frame.blobs else "the helper could not start the command"
            self._running[frame.id].fail(SandboxFailed(message))
        elif frame.op == wire.DONE and frame.id in self._running and frame.blobs:
            self._ended(self._running[frame.id], frame)

    def _ended(self, running: Running, frame: wire.Frame) -> None:
        try:
            status, rss, peak, duration = wire.ENDED.unpack(frame.blobs[0])
        except Exception:
            self._channel.close()
            return
        if frame.b != wire.NOT_KILLED:
            running.reason = running.reason or _WHY.get(frame.b, "killed")
        running.ended(status if frame.a else None, max(rss, peak), duration)

    def _on_close(self) -> None:
        """The helper is gone. By our own hand its commands were killed; otherwise the sandbox failed."""
        error = SandboxFailed("the sandbox ended by itself; its helper is gone")
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()
        for running in list(self._running.values()):
            if running.ended_by_us:
                running.reason = running.reason or "killed"
                running.ended(None, 0, 0.0)
            else:
                running.fail(error)


def _words(argv: tuple[str, ...] | list[str]) -> bytes:
    if not argv or not argv[0]:
        raise UsageError("a command needs at least its name")
    words = [os.fsencode(word) for word in argv]
    if any(b"\0" in word for word in words):
        raise UsageError("a command's words cannot hold a NUL byte")
    return b"\0".join(words)


def _pairs(env: Mapping[str, str]) -> bytes:
    pairs = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    if any(b"\0" in pair for pair in pairs) or any("=" in name or not name for name in env):
        raise UsageError("an environment variable has a name or a value that cannot be used")
    return b"\0".join(pairs)


def _refused(reason: Reason, message: bytes) -> CommandResult:
    return CommandResult(
        exit_code=-1, stdout=b"", stderr=message, truncated=0, stdout_total=0, stderr_total=len(message), reason=reason, duration_s=0.0
    )
