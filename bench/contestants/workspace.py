"""Workspaces on a repository of many files, beside ``git worktree add`` and ``git clone --local``, in turns."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from bench.contestants.talk import answer, config
from capataz.contracts.workspace import RunRepository
from capataz.workspace.repositories import LocalRepositories

GIT_ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=folder, env=GIT_ENV, check=True, capture_output=True)


def make_repository(folder: Path, folders: int, files: int) -> Path:
    """``folders`` times ``files`` small files in one commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for number in range(folders):
        place = folder / f"d{number:03}"
        place.mkdir()
        for file in range(files):
            (place / f"f{file:03}.txt").write_bytes(b"%d %d\n" % (number, file) * 20)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder


async def _ms(work: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1000


def _git_ms(folder: Path, *args: str) -> float:
    started = time.perf_counter()
    git(folder, *args)
    return (time.perf_counter() - started) * 1000


class Contest:
    def __init__(self, place: Path, source: Path, run: RunRepository, tree: str, base: str) -> None:
        self._place = place
        self._source = source
        self._run = run
        self._tree = tree
        self._base = base
        self.figures: dict[str, list[float]] = {}

    def note(self, name: str, ms: float) -> None:
        self.figures.setdefault(name, []).append(ms)

    async def round(self, number: int) -> None:
        self.note("workspace", await _ms(self._run.workspace(f"w{number}", self._tree, base_sha=self._base)))
        linked, clone = self._place / "linked", self._place / "clone"
        self.note("git worktree add", _git_ms(self._source, "worktree", "add", "-q", "--detach", str(linked)))
        self.note("git clone --local", _git_ms(self._place, "clone", "-q", "--local", str(self._source), str(clone)))
        await self._change(number, linked)
        git(self._source, "worktree", "remove", "--force", str(linked))
        shutil.rmtree(clone)

    async def _change(self, number: int, linked: Path) -> None:
        """One file changes in our workspace and in git's; both make a tree of it."""
        workspace = await self._run.workspace(f"w{number}", self._tree, base_sha=self._base)
        await workspace.snapshot()
        self.note("snapshot, nothing changed", await _ms(workspace.snapshot()))
        file = workspace.mount.upper / "d000" / "f000.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"changed %d\n" % number)
        self.note("snapshot", await _ms(workspace.snapshot()))
        (linked / "d000" / "f000.txt").write_bytes(b"changed %d\n" % number)
        started = time.perf_counter()
        git(linked, "add", "-A")
        git(linked, "write-tree")
        self.note("git add and write-tree", (time.perf_counter() - started) * 1000)
        await workspace.remove()


async def main(given: dict[str, Any]) -> None:
    place = Path(given["place"])
    source = make_repository(place / "source", given["folders"], given["files"])
    repositories = LocalRepositories(place / "home")
    info = await repositories.inspect(source)
    run = await repositories.open_run("r-bench", info)
    tree = await run.tree_of(info.head_sha)
    contest = Contest(place, source, run, tree, info.head_sha)
    contest.note("first checkout", await _ms(run.checkout(tree)))
    for number in range(given["repetitions"]):
        await contest.round(number)
    await repositories.remove_run("r-bench")
    answer(**contest.figures)



if __name__ == "__main__":
    asyncio.run(main(config()))
