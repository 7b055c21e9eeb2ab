"""Processes of ours on the host, held by pidfd: a recycled number is never signalled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def open_pidfd(pid: int, parent: int) -> int | None:
    """A handle on ``pid`` if it is a child of ``parent``, which the caller has not reaped."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    # looked at after the handle is held: a number that was recycled before shows another parent
    if _parent(pid) == parent:
        return fd
    os.close(fd)
    return None


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def signal_pidfd(fd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)


async def ended(fd: int) -> None:
    """Returns when the process of the handle is gone. For process 1 of a pid namespace the kernel lets it go last of all."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if gone.done() else gone.set_result(None))
    try:
        await gone
    finally:
        loop.remove_reader(fd)


async def reap(process: subprocess.Popen[bytes]) -> int:
    """Waits for a child of ours without a thread where the kernel has pidfds."""
    if process.poll() is None:
        try:
            fd = os.pidfd_open(process.pid)
        except (OSError, AttributeError):
            return await asyncio.to_thread(process.wait)
        try:
            await ended(fd)
        finally:
            os.close(fd)
    return process.wait()
