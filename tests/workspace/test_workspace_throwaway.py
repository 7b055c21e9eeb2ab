"""The ``.git`` that a worker sees."""

from __future__ import annotations

from pathlib import Path

import odd_repositories as odd
from conftest import in_sandbox, opened, workspace

from capataz.workspace.repositories import LocalRepositories


async def test_status_diff_log_and_blame_work(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.every_kind(tmp_path / "s")
    before = odd.state(source)
    run = await opened(repositories, source)
    ws = await workspace(run)
    assert in_sandbox(ws, "git status --porcelain; git diff; git stash list; git remote") == b""
    assert in_sandbox(ws, "git rev-parse HEAD").decode().strip() == run.info.head_sha
    assert in_sandbox(ws, "git log --format=%s") == b"attributes\nbase\nbase\n"
    assert b"def add" in in_sandbox(ws, "git blame calc.py")
    in_sandbox(ws, "sed -i s/a/b/ calc.py; echo x > dos.txt")
    assert in_sandbox(ws, "git status --porcelain") == b" M calc.py\n M dos.txt\n"
    in_sandbox(ws, "git checkout -q dos.txt; git commit -q -a -m mine; git fsck")
    assert odd.state(source) == before


async def test_shallow_sha256_and_worktree_sources(tmp_path: Path, repositories: LocalRepositories) -> None:
    linked = tmp_path / "linked"
    odd.git(odd.plain(tmp_path / "main"), "worktree", "add", "-q", "-b", "side", str(linked))
    sources = [odd.shallow(tmp_path / "shallow"), odd.plain(tmp_path / "sha256", "--object-format=sha256"), linked]
    for number, source in enumerate(sources):
        run = await opened(repositories, source, f"r{number}")
        ws = await workspace(run)
        assert in_sandbox(ws, "git status --porcelain; git fsck") == b""
        expected = odd.git(source, "log", "--format=%H%n%d").split()[0]
        assert in_sandbox(ws, "git log --format=%H").split()[0] == expected
        in_sandbox(ws, "echo x >> calc.py")
        commit = await run.commit(await ws.snapshot(), [run.info.head_sha], "m", at=1.5)
        odd.git(run.git_dir, "fsck", commit)


async def test_a_later_round_shows_its_candidate_as_head(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "echo 1 > calc.py; echo 2 > new")
    tree = await ws.snapshot()
    candidate = await run.commit(tree, [run.info.head_sha], "candidate", at=0)
    second = await run.workspace("w2", tree, base_sha=candidate)
    assert in_sandbox(second, "git status --porcelain; git log --format=%s; cat new") == b"candidate\nbase\n2\n"
    # A workspace whose files are ahead of the commit that it shows.
    ahead = await run.workspace("w3", tree, base_sha=run.info.head_sha, writable=False)
    assert in_sandbox(ahead, "git status --porcelain") == b" M calc.py\n?? new\n"
    assert not ahead.mount.writable


async def test_hidden_files_are_not_readable_through_git_either(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run, hidden=["src/pkg/*.py", "no/such"])
    assert ws.mount.hidden == (b"src/pkg/long.py",) and ws.mount.read_only == ()
    assert not (ws.mount.upper / ".git").exists()
    assert await ws.snapshot() == await run.tree_of(run.info.head_sha)
