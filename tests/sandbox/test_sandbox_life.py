"""Starting, ending and being killed: nothing of a session is left on the host."""

# Processes and /proc are looked at as they are:
# ruff: noqa: ASYNC220, ASYNC240, PTH208
from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capataz.contracts.errors import SandboxUnavailable, UsageError
from capataz.contracts.sandbox import Mount, SandboxSpec, WorkspaceMount
from capataz.sandbox import bubblewrap, cgroup, make_sandbox
from capataz.sandbox.owner import owner, remove_stale
from capataz.testing.sandbox_conformance import host_processes

_WORKER = """
import asyncio, sys
from pathlib import Path
from capataz.contracts.sandbox import SandboxSpec
from capataz.sandbox import make_sandbox
async def main():
    session = await make_sandbox(sys.argv[1], runtime_dir=Path(sys.argv[2])).start(SandboxSpec(workspace=None))
    await session.run(["sh", "-c", "setsid sleep 98761234 & echo up; sleep 98761234"], on_output=lambda data: print(data.decode(), flush=True))
asyncio.run(main())
"""


def _groups() -> set[str]:
    found = cgroup._candidates()
    return {p.name for _, folders in found for folder in set(folders.values()) for p in folder.glob(f"capataz-{os.getpid()}-*")}


async def test_nothing_is_left_after_kill(tmp_path: Path) -> None:
    sandbox = make_sandbox("bubblewrap", runtime_dir=tmp_path)
    for _ in range(3):
        session = await sandbox.start(SandboxSpec(workspace=None))
        await session.run(["sh", "-c", "mkdir -p a/b; chmod 0 a"])
        await session.kill()
        await session.kill()
    assert not list(tmp_path.glob("sandbox/*/session-*"))
    assert not _groups()
    fds = os.listdir("/proc/self/fd")
    session = await sandbox.start(SandboxSpec(workspace=None))
    await session.run(["true"])
    await session.kill()
    assert len(os.listdir("/proc/self/fd")) == len(fds)


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_killed_worker_takes_everything_along(backend: str, tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, backend, str(tmp_path)], stdout=subprocess.PIPE)
    assert worker.stdout is not None and await asyncio.to_thread(worker.stdout.readline) == b"up\n"
    groups = [Path(os.fsdecode(n)) for f in tmp_path.glob("sandbox/*/session-*/cgroups") for n in f.read_bytes().split(b"\0")]
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    deadline = time.monotonic() + 10
    while host_processes(b"98761234") and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    session = await make_sandbox(backend, runtime_dir=tmp_path).start(SandboxSpec(workspace=None))
    await session.kill()
    assert not host_processes(b"98761234")
    assert [p for p in (tmp_path / "sandbox").iterdir()] == [owner(tmp_path).folder]
    assert not [g for g in groups if g.exists()]


def test_a_dead_worker_s_folder_stays_until_its_groups_can_be_removed(tmp_path: Path) -> None:
    group = cgroup.make(f"{os.getpid()}-busy")
    if group is None:
        pytest.skip("no control groups can be made here")
    session = tmp_path / "1-dead" / "session-1"
    session.mkdir(parents=True)
    (tmp_path / "1-dead" / "lock").touch()
    (session / "cgroups").write_bytes(b"\0".join(os.fsencode(folder) for folder in set(group.folders.values())))
    inside = subprocess.Popen(["sleep", "60"])
    try:
        group.open(1 << 30, 10)
        for fd in group.entries:
            os.write(fd, str(inside.pid).encode())
        group.close()
        remove_stale(tmp_path)
        assert session.exists(), "nobody would know of the group any more"
    finally:
        inside.kill()
        inside.wait()
    remove_stale(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not any(folder.exists() for folder in group.folders.values())


def test_groups_of_workers_that_are_gone_are_swept() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    groups = [cgroup.make(f"{pid}-test") for pid in (gone.pid, os.getpid())]
    if groups[0] is None or groups[1] is None:
        pytest.skip("no control groups can be made here")
    try:
        for group in groups:
            group.open(1 << 30, 10)
            group.close()
        cgroup.sweep()
        assert all(f.exists() for f in groups[0].folders.values()), "a young group may be one that is about to be entered"
        cgroup.sweep(older_than_s=-1)
        assert not any(f.exists() for f in groups[0].folders.values())
        assert all(f.exists() for f in groups[1].folders.values())
    finally:
        for group in groups:
            group.remove()


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_a_full_disk_is_said_as_what_it_is(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cgroups")

    monkeypatch.setattr("capataz.sandbox.owner.Owner.note_cgroups", full)
    monkeypatch.setattr("capataz.sandbox.cgroup.make", lambda name: cgroup.Cgroup(2, {}))
    with pytest.raises(SandboxUnavailable, match="No space left"):
        await make_sandbox(backend, runtime_dir=tmp_path).start(SandboxSpec(workspace=None))
    assert not list(tmp_path.glob("sandbox/*/session-*"))


async def test_sixteen_sessions_at_once(tmp_path: Path) -> None:
    sandbox = make_sandbox("bubblewrap", runtime_dir=tmp_path)
    sessions = await asyncio.gather(*(sandbox.start(SandboxSpec(workspace=None)) for _ in range(16)))
    results = await asyncio.gather(*(s.run(["sh", "-c", f"echo {n} > f; cat f"]) for n, s in enumerate(sessions)))
    assert [r.stdout for r in results] == [b"%d\n" % n for n in range(16)]
    await asyncio.gather(*(s.kill() for s in sessions))
    assert not list(tmp_path.glob("sandbox/*/session-*"))


async def test_an_overlay_can_be_mounted_again_at_once(tmp_path: Path) -> None:
    """``kill`` returns when the mounts are gone: the kernel refuses a private layer that another mount still uses."""
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    mount = WorkspaceMount(upper=tmp_path / "upper", lower=tmp_path / "lower", work=tmp_path / "work")
    sandbox = make_sandbox("bubblewrap", runtime_dir=tmp_path / "rt")
    for n in range(10):
        session = await sandbox.start(SandboxSpec(workspace=mount))
        assert (await session.run(["sh", "-c", "echo x >> f; wc -l < f"])).stdout == b"%d\n" % (n + 1)
        await session.kill()


async def test_set_up_has_a_layer_and_may_have_the_network(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    tool = tmp_path / "tool"
    for folder in (layer, tool / "bin"):
        folder.mkdir(parents=True)
    (tool / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (tool / "bin" / "hello").chmod(0o755)
    spec = SandboxSpec(workspace=None, layer=layer, network="host", read_only=(Mount(tool, "/opt/tool"),), path=("/opt/tool/bin",), purpose="setup")
    session = await make_sandbox("bubblewrap", runtime_dir=tmp_path / "rt").start(spec)
    result = await session.run(["sh", "-c", "hello > /capataz/layer/made; echo x > /opt/tool/y; ls /sys /proc/1/root"])
    await session.kill()
    assert "network" not in session.enforces
    assert (layer / "made").read_text() == "hello\n"
    assert not (tool / "y").exists() and result.exit_code != 0


async def test_what_cannot_be_enforced_is_refused(tmp_path: Path) -> None:
    files = WorkspaceMount(upper=tmp_path)
    local = make_sandbox("local", runtime_dir=tmp_path / "rt")
    for mount in (WorkspaceMount(upper=tmp_path, lower=tmp_path, work=tmp_path), WorkspaceMount(upper=tmp_path, hidden=(b"x",)),
                  WorkspaceMount(upper=tmp_path, writable=False)):
        with pytest.raises(SandboxUnavailable):
            await local.start(SandboxSpec(workspace=mount))
    wrap = make_sandbox("bubblewrap", runtime_dir=tmp_path / "rt")
    for spec in (SandboxSpec(workspace=WorkspaceMount(upper=tmp_path / "none")), SandboxSpec(workspace=files, read_only=(Mount(tmp_path, "/a/../b"),)),
                 SandboxSpec(workspace=files, read_only=(Mount(tmp_path / "none", "/x"),))):
        with pytest.raises(SandboxUnavailable):
            await wrap.start(spec)
    assert not list((tmp_path / "rt").glob("sandbox/*/session-*"))


@pytest.mark.parametrize("name", ["gvisor", "container"])
def test_backends_that_are_not_here_say_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=name):
        make_sandbox(name, runtime_dir=tmp_path)
    with pytest.raises(UsageError):
        make_sandbox("chroot", runtime_dir=tmp_path)


def test_forbidden_namespaces_name_what_to_enable(tmp_path: Path) -> None:
    """Really forbidden: in a user namespace whose own limit of user namespaces is 0."""
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom capataz.contracts.sandbox import SandboxSpec\n"
        "from capataz.sandbox import make_sandbox\nasyncio.run(make_sandbox('bubblewrap', runtime_dir=Path(sys.argv[1])).start(SandboxSpec(workspace=None)))"
    )
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\""
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = done.stderr.strip().splitlines()[-1]
    assert "SandboxUnavailable: user namespaces are forbidden here; to enable them: sysctl user.max_user_namespaces=10000" in line, done.stderr
    assert not list(tmp_path.glob("sandbox/*/session-*"))


def test_the_switches_of_distributions_are_named(monkeypatch) -> None:
    monkeypatch.setattr(bubblewrap, "_read_switch", lambda name: "1")
    assert "apparmor_restrict_unprivileged_userns=0" in bubblewrap._namespace_help()
    monkeypatch.setattr(bubblewrap, "_read_switch", lambda name: "0")
    assert "unprivileged_userns_clone=1" in bubblewrap._namespace_help()
    monkeypatch.setattr(bubblewrap, "_read_switch", lambda name: "")
    assert "in a container" in bubblewrap._namespace_help()
