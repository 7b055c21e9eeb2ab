"""Who holds a lease, and whether that process is known to be dead on this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from capataz.contracts.journal import Holder


def _boot() -> str:
    """The machine's boot and the pid namespace: only within both does a pid mean the same process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return socket.gethostname()


def _start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None: there is none (a zombie counts as none)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def this_process() -> Holder:
    pid = os.getpid()
    return Holder(worker=f"{socket.gethostname()}:{pid}", boot=_boot(), pid=pid, pid_start=_start_ticks(pid) or 0)


def known_dead(holder: Holder) -> bool:
    """True only when the holder's process cannot live any more: same boot and namespace, and pid gone or recycled."""
    return holder.boot == _boot() and _start_ticks(holder.pid) != holder.pid_start
