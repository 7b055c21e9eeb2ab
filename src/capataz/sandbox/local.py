"""The ``local`` backend: no isolation at all. For repositories that their owner trusts (``--trust-repository``).

The same helper serves it, so commands, output and files behave alike; the process tree is killed as well as a host allows.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from capataz.contracts.errors import SandboxFailed, SandboxUnavailable
from capataz.contracts.sandbox import WORKSPACE, SandboxSpec
from capataz.sandbox import cgroup, program, system
from capataz.sandbox.disk import Gauge
from capataz.sandbox.owner import Owner, owner, remove_tree, set_up
from capataz.sandbox.processes import ended, reap
from capataz.sandbox.session import HelperSession, Started

_START_PATIENCE_S = 20.0
_END_PATIENCE_S = 8.0
_MARK = "CAPATAZ_LOCAL_SESSION"
_PASSED_ON = ("PATH", "LANG", "TERM", "TZ")


class LocalSandbox:
    """Commands run as the user, beside everything else of the user."""

    name = "local"

    def __init__(self, runtime_dir: Path) -> None:
        self._runtime_dir = runtime_dir

    async def probe(self) -> tuple[str, ...]:
        session = await self.start(SandboxSpec(workspace=None))
        await session.kill()
        return session.enforces

    async def start(self, spec: SandboxSpec) -> HelperSession:
        """See the port. Overlays, hidden paths, further mounts and forwarded ports need namespaces: refused."""
        _check(spec)
        with set_up(self._runtime_dir):
            place = owner(self._runtime_dir)
            start = _Start(place, place.session(), spec, self._runtime_dir)
            try:
                return await start.run()
            except BaseException:
                await asyncio.shield(start.end())
                raise


def _check(spec: SandboxSpec) -> None:
    mount = spec.workspace
    if mount is not None and mount.lower is not None:
        raise SandboxUnavailable("the local backend cannot mount overlays: use a copied workspace")
    if mount is not None and (mount.hidden or not mount.writable):
        raise SandboxUnavailable("the local backend cannot hide paths or make the workspace read-only: use --sandbox bubblewrap")
    if mount is not None and not mount.upper.is_dir():
        raise SandboxUnavailable(f"the workspace folder {mount.upper} does not exist")


class _Start:
    """What one session has on the host."""

    def __init__(self, place: Owner, folder: Path, spec: SandboxSpec, runtime_dir: Path) -> None:
        self._owner, self._folder, self._spec = place, folder, spec
        self._runtime_dir = runtime_dir
        self._mark = os.urandom(12).hex()
        self._cgroup: cgroup.Cgroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None
        self._root = (spec.workspace.upper if spec.workspace else folder / "workspace").absolute()
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()
        if spec.workspace is None:
            self._root.mkdir()

    async def run(self) -> HelperSession:
        self._cgroup = self._make_cgroup()
        self._spawn()
        session = HelperSession(self._spec, self._started())
        try:
            async with asyncio.timeout(_START_PATIENCE_S):
                await session.open()
        except (SandboxFailed, TimeoutError) as error:
            await session.kill()
            raise SandboxFailed(f"the helper did not start: {error or type(error).__name__}") from None
        except BaseException:
            await asyncio.shield(session.kill())
            raise
        return session

    def _make_cgroup(self) -> cgroup.Cgroup | None:
        group = cgroup.make(f"{os.getpid()}-{os.urandom(4).hex()}")
        if group is None:
            return None
        self._owner.note_cgroups(self._folder, list(dict.fromkeys(group.folders.values())))
        try:
            group.open(self._spec.limits.memory_bytes, self._spec.limits.pids)
        except OSError:
            group.remove()
            return None
        return group

    def _spawn(self) -> None:
        self._ours, theirs = socket.socketpair()
        library = str(program.carried(self._runtime_dir))
        command = program.command(system.interpreter(), library, str(self._root), theirs.fileno(), "local")
        try:
            self._process = subprocess.Popen(
                command, env={}, cwd="/", pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise SandboxUnavailable(f"the helper cannot be started: {error.strerror}") from None
        finally:
            theirs.close()

    def _started(self) -> Started:
        assert self._ours is not None
        limits = self._spec.limits
        how = "cgroup" if self._cgroup else "watchdog"
        watched = [self._root, *([self._spec.layer] if self._spec.layer else [])]
        return Started(
            backend="local",
            enforces=(f"memory:{how}", f"pids:{how}", "disk:watchdog", "cpu:watchdog", "wall", "output"),
            sock=self._ours,
            alone=False,
            end=self.end,
            spool=self._owner.spool,
            environment=self._environment(),
            cwd=self._translate,
            cgroup=self._cgroup,
            gauge=Gauge(watched, limits.disk_bytes, True) if limits.disk_bytes else None,
        )

    def _environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {
            "HOME": str(self._folder / "home"), "TMPDIR": str(self._folder / "tmp"), "SHELL": "/bin/sh", "LANG": "C.UTF-8", "TERM": "dumb",
        }
        path = ":".join([*self._spec.path, passed.pop("PATH", "/usr/bin:/bin")])
        return {**own, **passed, "PATH": path, **self._spec.env, _MARK: self._mark}

    def _translate(self, path: str) -> str:
        """``/workspace`` is a place of the contract; here it is a folder like any other."""
        if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
            return str(self._root) + path[len(WORKSPACE) :]
        return path

    async def end(self) -> None:
        """Ends the helper, then every process that carries the session's mark or is in its control group."""
        process, self._process = self._process, None
        if self._ours is not None and self._ours.fileno() >= 0:
            with suppress(OSError):
                self._ours.close()
        if process is not None:
            reaping = asyncio.get_running_loop().create_task(reap(process))
            await asyncio.wait({reaping}, timeout=_END_PATIENCE_S)     # it kills what it adopted, and then itself
            if not reaping.done():
                process.kill()
            await reaping
        for _ in range(500):
            pidfds = self._strays()
            if not pidfds:
                break
            await _kill_all(pidfds)
        group, self._cgroup = self._cgroup, None
        for _ in range(200):
            if group is None or group.remove():
                break
            await asyncio.sleep(0.005)
        if self._folder.exists():
            await asyncio.to_thread(remove_tree, self._folder)

    def _strays(self) -> list[int]:
        """Handles on what is left. Marked ones are read through the handle's own process, so no number is guessed."""
        wanted = f"{_MARK}={self._mark}".encode()
        members: set[int] = set()
        for folder in self._cgroup.folders.values() if self._cgroup else ():
            with suppress(OSError, ValueError):
                members |= set(map(int, (folder / "cgroup.procs").read_text().split()))
        found: list[int] = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and int(place.name) != os.getpid():
                fd = _marked(int(place.name), wanted, members)
                if fd is not None:
                    found.append(fd)
        return found


def _marked(pid: int, wanted: bytes, members: set[int]) -> int | None:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        if status[0] != b"Z" and (pid in members or wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
            return fd
    os.close(fd)
    return None


async def _kill_all(pidfds: list[int]) -> None:
    import signal

    for fd in pidfds:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    for fd in pidfds:
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await ended(fd)
        os.close(fd)
