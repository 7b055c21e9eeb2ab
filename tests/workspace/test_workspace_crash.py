"""Killed at every fault point of the room, then called again: whole or not there, and the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import opened

from capataz.workspace.repositories import LocalRepositories

_PROGRAM = """
import asyncio, sys
from pathlib import Path
from capataz.contracts.faults import faults_from_environment
from capataz.workspace.repositories import LocalRepositories

async def main(source, home):
    entry = LocalRepositories(Path(home), faults=faults_from_environment())
    info = await entry.inspect(source)
    base = open(home + "-base").read()
    run = await entry.open_run("r", info)
    tree = await run.tree_of(base)
    ws = await run.workspace("w", tree, base_sha=base)
    await ws.restore(tree)
    (ws.mount.upper / "calc.py").write_bytes(b"new")
    after = await ws.snapshot()
    sha = await run.commit(after, [base], "m", at=0)
    await entry.publish(run, sha, ref="refs/heads/main", expected_old=base)
    assert await entry.update_checkout(info, base, sha)
    await ws.remove()
    await entry.remove_run("r")
    print(sha)
    entry.close()

asyncio.run(main(*sys.argv[1:]))
"""
_KEY_POINTS = ["workspace.create.after", "promote.after", "checkout.before"]
_OTHERS = ["workspace.create.before", "snapshot.before", "snapshot.after", "promote.before", "checkout.after",
           "workspace.remove.before", "workspace.remove.after"]
_ENV = {"PATH": odd.ENV["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.slow
@pytest.mark.parametrize("points", [_KEY_POINTS, pytest.param(_OTHERS, marks=pytest.mark.sweep)])
async def test_kill_at_every_point(tmp_path: Path, points: list[str]) -> None:
    shas: set[bytes] = set()
    for number, point in enumerate(points):
        source, home = odd.plain(tmp_path / f"s{number}"), tmp_path / f"home{number}"
        (tmp_path / f"home{number}-base").write_text(odd.git(source, "rev-parse", "HEAD").decode().strip())
        argv = [sys.executable, "-c", _PROGRAM, str(source), str(home)]
        killed = subprocess.run(argv, env={**_ENV, "CAPATAZ_FAULT": point}, capture_output=True)  # noqa: ASYNC221
        assert killed.returncode == -9, (point, killed.stderr)
        again = subprocess.run(argv, env=_ENV, capture_output=True)  # noqa: ASYNC221
        assert again.returncode == 0, (point, again.stderr.decode())
        shas.add(again.stdout.strip())
        assert odd.git(source, "status", "--porcelain") == b"" and (source / "calc.py").read_bytes() == b"new"
        left = LocalRepositories(home)
        assert {item["kind"] async for item in left.leftovers()} <= {"run", "checkout", "scratch"}
        assert not list((home / "runs/r").glob("ws/*"))
    assert len(shas) == 1


async def test_what_a_crash_left_is_found(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    await run.checkout(await run.tree_of(run.info.head_sha))
    home = tmp_path / "home"
    for name in ("checkouts/.new-x", "runs/run-1/ws/.old-y", "scratch/git-z"):
        odd.write(home / name, "f", b"x")
    found = [item async for item in repositories.leftovers()]
    assert {Path(i["path"]).name for i in found} >= {".new-x", ".old-y", "git-z", "run-1"}
    for item in found:
        await repositories.remove_leftover(item)
    assert [item async for item in repositories.leftovers()] == []
