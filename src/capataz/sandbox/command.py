"""One command of a session as the worker sees it: its pipes, what it printed, how it ended."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from capataz.contracts.sandbox import CommandResult, Reason
from capataz.sandbox.output import Ring

OUTPUT_LIMIT_BYTES = 16 << 30                  # a command that prints more is killed: nobody would ever read it
_CHUNK = 256 << 10
_GRACE_S = 2.0                                 # after the tree is gone, a pipe that stays open is not the tree's


class Running:
    """Collects until the helper says that the whole tree is gone and both pipes are at their end."""

    def __init__(self, id: int, spool: Path, output_limit: int, spool_limit: int, on_output: Callable[[bytes], Any] | None) -> None:
        self.id = id
        self.reason: Reason | None = None
        self.kill_sent = False
        self.ended_by_us = False
        self.tree_peak = 0
        self._loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self._loop.create_future()
        name = f"{id}-{os.urandom(4).hex()}"
        self._rings = [Ring(output_limit, spool / f"{name}.{stream}", spool_limit) for stream in ("out", "err")]
        self._pipes: dict[int, Ring] = {}
        self._on_output = on_output
        self._status: int | None = None
        self._tree_gone = False
        self._started = time.monotonic()
        self._duration = 0.0
        self._failed_callback: BaseException | None = None
        self._kept = False

    @property
    def output_over(self) -> bool:
        return any(ring.total > OUTPUT_LIMIT_BYTES for ring in self._rings)

    def open(self, stdin: bytes) -> list[int]:
        """The descriptors for the command's 0, 1 and 2; the caller closes them when they are sent."""
        given = [_input(stdin)]
        try:
            for ring in self._rings:
                ours, theirs = os.pipe()
                given.append(theirs)
                os.set_blocking(ours, False)
                with suppress(OSError, AttributeError):
                    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _CHUNK)
                self._pipes[ours] = ring
                self._loop.add_reader(ours, self._readable, ours)
        except OSError:
            for fd in given:
                os.close(fd)
            raise
        return given

    def _readable(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._close_pipe(fd)
            self._check()
            return
        self._pipes[fd].feed(data)
        if self._on_output is not None and self._failed_callback is None:
            try:
                self._on_output(data)
            except Exception as error:         # raised from run(), where the caller can see it
                self._failed_callback = error

    def _close_pipe(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)
        del self._pipes[fd]

    def ended(self, status: int | None, peak_bytes: int, duration_s: float) -> None:
        """The whole tree is gone. ``status`` None: the command itself did not live to report."""
        self._status = status
        self.tree_peak = peak_bytes
        self._duration = duration_s or time.monotonic() - self._started
        self._tree_gone = True
        self._loop.call_later(_GRACE_S, self._give_up_on_pipes)
        self._check()

    def _give_up_on_pipes(self) -> None:
        for fd in list(self._pipes):
            self._close_pipe(fd)
        self._check()

    def _check(self) -> None:
        if self._tree_gone and not self._pipes and not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)

    def result(self) -> CommandResult:
        """Only after ``finished``. Raises what ``on_output`` raised."""
        if self._failed_callback is not None:
            raise self._failed_callback
        (stdout, cut_out, full_out), (stderr, cut_err, full_err) = (ring.finish() for ring in self._rings)
        self._kept = True
        code = _exit_code(self._status, self.reason)
        return CommandResult(
            exit_code=code,
            stdout=stdout,
            stderr=stderr,
            truncated=cut_out + cut_err,
            stdout_total=self._rings[0].total,
            stderr_total=self._rings[1].total,
            reason=self.reason or "exit",
            duration_s=self._duration,
            peak_memory_bytes=self.tree_peak,
            full_stdout=full_out,
            full_stderr=full_err,
        )

    def close(self) -> None:
        """Lets go of everything; spool files stay only when ``result`` named them."""
        for fd in list(self._pipes):
            self._close_pipe(fd)
        if not self._kept:
            for ring in self._rings:
                ring.discard()
        if self.finished.done() and not self.finished.cancelled():
            self.finished.exception()          # seen, whether or not somebody awaited it


def _exit_code(status: int | None, reason: Reason | None) -> int:
    """The process's own code; -1 when it was killed for ``reason``, which its own orderly end is not."""
    if status is None:
        return -1
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return -1 if reason is not None and number == signal.SIGKILL else 128 + number
    return os.WEXITSTATUS(status)


def _input(data: bytes) -> int:
    """A descriptor to read ``data`` from: a sealed memory file, so nobody has to feed a pipe."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            return os.dup(file.fileno())
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)
