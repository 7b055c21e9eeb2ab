"""A forked run opens the trees of the run that it came from, also when that is gone."""

from __future__ import annotations

from pathlib import Path

import odd_repositories as odd
from conftest import in_sandbox, opened, workspace

from capataz.workspace.repositories import LocalRepositories


async def test_a_copied_run_has_the_trees_of_the_first(repositories: LocalRepositories, tmp_path: Path) -> None:
    source = odd.plain(tmp_path / "source")
    first = await opened(repositories, source, "run-1")
    made = await workspace(first)
    in_sandbox(made, "echo new > made.txt")
    tree = await made.snapshot()
    await repositories.copy_run("run-1", "run-2")
    await repositories.remove_run("run-1", keep_objects=False)
    second = await opened(repositories, source, "run-2")
    assert await second.read(tree, b"made.txt") == b"new\n"
    again = await second.workspace("w1", tree, base_sha=second.info.head_sha)
    in_sandbox(again, "echo more > more.txt")
    assert await second.read(await again.snapshot(), b"made.txt") == b"new\n"
    assert {item["run_id"] async for item in repositories.leftovers() if item["kind"] == "run"} == {"run-2"}


async def test_a_run_without_objects_needs_none(repositories: LocalRepositories) -> None:
    await repositories.copy_run("nobody", "run-2")
    assert [item async for item in repositories.leftovers()] == []
