"""The numbers that the design must keep, on 20,000 files."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import bwrap_argv, opened

from capataz.workspace.repositories import LocalRepositories


async def _best_ms(call: Callable[[int], Awaitable[object]], times: int = 5) -> float:
    best = float("inf")
    for number in range(times):
        started = time.perf_counter()
        await call(number)
        best = min(best, time.perf_counter() - started)
    return best * 1000


@pytest.mark.sweep
async def test_twenty_thousand_files(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.init(tmp_path / "s")
    for folder in range(200):
        for file in range(100):
            odd.write(source, f"d{folder:03}/f{file:03}.txt", b"%d %d\n" % (folder, file) * 20)
    odd.commit(source)
    run = await opened(repositories, source)
    tree, base = await run.tree_of(run.info.head_sha), run.info.head_sha
    started = time.perf_counter()
    await run.checkout(tree)
    figures = {"first checkout": (time.perf_counter() - started) * 1000}
    figures["workspace"] = await _best_ms(lambda n: run.workspace(f"w{n}", tree, base_sha=base))
    ws = await run.workspace("w0", tree, base_sha=base)
    figures["snapshot, nothing changed"] = await _best_ms(lambda n: ws.snapshot())

    async def change(number: int) -> None:
        file = ws.mount.upper / "d100/f050.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"%d\n" % number)
        await ws.snapshot()

    figures["snapshot, one file changed"] = await _best_ms(change)
    started = time.perf_counter()
    subprocess.run([*bwrap_argv(ws), "git", "status", "--porcelain"], check=True, capture_output=True)  # noqa: ASYNC221
    figures["first git status inside"] = (time.perf_counter() - started) * 1000
    started = time.perf_counter()
    odd.git(source, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    figures["git worktree add"] = (time.perf_counter() - started) * 1000
    print({name: round(ms, 1) for name, ms in figures.items()})
    assert figures["workspace"] <= 100
    assert figures["snapshot, one file changed"] <= 200
    assert figures["workspace"] < figures["git worktree add"]
