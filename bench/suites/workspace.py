"""A private copy of 20,000 files, and a tree of what changed in it."""

from __future__ import annotations

import shutil

from bench import child
from bench.context import Context
from bench.figures import Row, Series, bounded, compared, series


def measure(context: Context) -> list[Row]:
    place = context.folder / "workspaces"
    folders, files = context.size(200, 5), context.size(100, 5)
    given = {"place": str(place), "folders": folders, "files": files, "repetitions": context.size(5, 1)}
    try:
        figures = child.run("bench.contestants.workspace", given, context.environment()).answer
    finally:
        shutil.rmtree(place, ignore_errors=True)
    of = f"{folders * files:,} files"

    def ms(name: str) -> Series:
        return series(figures[name], "ms")

    return [
        bounded("workspace", f"workspace on {of}", ms("workspace"), limit=100, note="over the shared checkout of its tree"),
        compared("workspace", f"workspace on {of}", ms("workspace"), "git worktree add", ms("git worktree add"), limit=1, strictly=True),
        compared("workspace", f"workspace on {of}", ms("workspace"), "git clone --local", ms("git clone --local"), limit=1, strictly=True),
        bounded("workspace", f"first checkout of a tree of {of}, shared by all its workspaces", ms("first checkout"), limit=None),
        bounded("workspace", "snapshot after one changed file", ms("snapshot"), limit=200),
        compared(
            "workspace", "snapshot after one changed file", ms("snapshot"), "git add -A, git write-tree", ms("git add and write-tree"),
            limit=None,
        ),
        bounded("workspace", "snapshot when nothing changed", ms("snapshot, nothing changed"), limit=None),
    ]
