"""The sandbox port. One conformance suite runs against every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Reason = Literal["exit", "timeout", "killed", "memory", "pids", "disk", "output"]
WORKSPACE = "/workspace"


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only mount of a host path. ``source`` must not be a link that hostile code could have made."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class WorkspaceMount:
    """What stands at ``/workspace``.

    Overlay: ``lower`` (shared, read-only), ``upper`` and ``work`` (private; one file system). Plain: ``lower`` and
    ``work`` are None and ``upper`` is the whole folder. ``hidden``: paths (bytes, relative) that must not be readable.
    """

    upper: Path
    lower: Path | None = None
    work: Path | None = None
    writable: bool = True
    read_only: tuple[Mount, ...] = ()          # further mounts, e.g. the git objects that the throw-away .git refers to
    hidden: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means no limit."""

    memory_bytes: int = 2 << 30
    pids: int = 256
    disk_bytes: int = 4 << 30
    cpu_s: float = 0
    wall_s: float = 0
    file_bytes: int = 0                        # the largest single file


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    workspace: WorkspaceMount | None           # None: a private empty folder
    read_only: tuple[Mount, ...] = ()          # toolchain layers and the like
    env: Mapping[str, str] = field(default_factory=dict[str, str])   # added to a small fixed environment
    path: tuple[str, ...] = ()                 # put before the default PATH
    network: Literal["none", "host"] = "none"  # "host" only for a set-up step that policy grants, and said so in evidence
    forwards: Mapping[int, Path] = field(default_factory=dict[int, Path])   # loopback port inside -> unix socket of ours outside
    limits: Limits = field(default_factory=Limits)
    purpose: str = "agent"
    layer: Path | None = None                  # a host folder mounted writable at /capataz/layer: set-up steps only


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """``exit_code``: the process's own; 128+signal for a signal; -1 when it was killed by us (``reason`` says why).

    ``stdout`` and ``stderr`` hold head and tail, at most ``output_limit`` bytes each, with ``truncated`` bytes left out
    in the middle; the cut is marked in the bytes. ``*_total`` count what was printed.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: int
    stdout_total: int
    stderr_total: int
    reason: Reason
    duration_s: float
    peak_memory_bytes: int = 0
    full_stdout: Path | None = None            # spool files with everything up to ``spool_limit``; the caller removes them
    full_stderr: Path | None = None


@dataclass(frozen=True, slots=True)
class FileStat:
    kind: Literal["file", "dir", "link", "other", "missing"]
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class DirEntry:
    path: bytes                                # relative to the listed folder
    kind: Literal["file", "dir", "link", "other"]
    size: int


class SessionFiles(Protocol):
    """Served by a small resident helper inside the sandbox. Paths are bytes, relative to the workspace.

    Absolute paths, ``..`` and links that leave the workspace raise ``ForbiddenAccess``; a missing file is ``NotFound``,
    a wrong kind or a full disk ``UsageError``; a dead helper ``SandboxFailed``. Writes are atomic and keep the mode.
    """

    async def stat(self, path: bytes) -> FileStat: ...
    async def read(self, path: bytes, *, offset: int = 0, limit: int = 16 << 20) -> bytes: ...
    async def write(self, path: bytes, data: bytes, *, mode: int | None = None) -> None:
        """Creates parents."""
        ...
    async def list(self, path: bytes, *, depth: int = 1, limit: int = 10_000) -> list[DirEntry]: ...
    async def remove(self, path: bytes) -> None: ...


class Session(Protocol):
    """A running sandbox. Every process inside dies with it."""

    backend: str
    enforces: tuple[str, ...]                  # e.g. ("filesystem", "network", "seccomp", "memory:cgroup", "pids:watchdog", ...)

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
        """Runs a command; when it ends (or its time does) its whole process tree, ``setsid`` children included, is killed.

        A command that cannot start gives exit code 127 or 126 and its reason on stderr. A broken sandbox raises
        ``SandboxFailed``. Cancelling the call kills the command.
        """
        ...

    @property
    def files(self) -> SessionFiles: ...

    async def kill(self) -> None:
        """Idempotent; returns when every process is gone and every mount with it."""
        ...


class Sandbox(Protocol):
    """A backend."""

    name: str

    async def probe(self) -> tuple[str, ...]:
        """What it enforces on this host. Raises ``SandboxUnavailable`` naming what to install or enable."""
        ...

    async def start(self, spec: SandboxSpec) -> Session:
        """Raises ``SandboxUnavailable`` if something that the spec asks cannot be enforced: nothing runs then."""
        ...
