"""Publication: objects and one ref, by compare-and-swap."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import in_sandbox, opened, workspace

from capataz.contracts.errors import RepositoryUnusable, TargetMoved, UsageError
from capataz.workspace.repositories import LocalRepositories
from capataz.workspace.run_repository import LocalRunRepository


async def candidate(run: LocalRunRepository, script: str = "echo new > calc.py; mkdir d; echo x > d/f") -> str:
    ws = await workspace(run, f"w{hash(script)}")
    in_sandbox(ws, script)
    return await run.commit(await ws.snapshot(), [run.info.head_sha], "candidate", at=0)


@pytest.mark.parametrize("many", [False, True])
async def test_publish_once_and_again(tmp_path: Path, repositories: LocalRepositories, many: bool) -> None:
    source = odd.plain(tmp_path / "s")
    run = await opened(repositories, source)
    sha = await candidate(run, "for i in $(seq 300); do echo $i > f$i; done" if many else "echo 1 > one")
    for _ in range(2):
        await repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha)
    await repositories.remove_run("run-1", keep_objects=False)
    assert odd.git(source, "rev-parse", "main").decode().strip() == sha
    odd.git(source, "fsck", "--strict")
    assert odd.git(source, "log", "-1", "--format=%gs", "-g", "main") == b"capataz: promote\n"


async def test_a_new_branch_and_a_moved_target(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    run = await opened(repositories, source)
    sha = await candidate(run)
    await repositories.publish(run, sha, ref="refs/heads/capataz/run-1", expected_old=None)
    await repositories.publish(run, sha, ref="refs/heads/capataz/run-1", expected_old=None)
    other = await candidate(run, "echo other > calc.py")
    with pytest.raises(TargetMoved):
        await repositories.publish(run, other, ref="refs/heads/capataz/run-1", expected_old=None)
    odd.write(source, "more", b"x")
    moved = odd.commit(source, "somebody else")
    before = odd.state(source)
    with pytest.raises(TargetMoved, match=moved):
        await repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha)
    with pytest.raises(TargetMoved):
        await repositories.publish(run, sha, ref="refs/heads/gone", expected_old=run.info.head_sha)
    assert odd.state(source) == before
    for bad in ("main", "refs/heads/a..b", "refs/heads/-x\n", "--help"):
        with pytest.raises(UsageError):
            await repositories.publish(run, sha, ref=bad, expected_old=None)
    with pytest.raises(RepositoryUnusable, match="refs/heads/main/x"):
        await repositories.publish(run, sha, ref="refs/heads/main/x", expected_old=None)


async def test_of_two_at_once_one_wins(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    run = await opened(repositories, source)
    shas = [await candidate(run, f"echo {n} > calc.py") for n in range(4)]
    done = await asyncio.gather(
        *(repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha) for sha in shas), return_exceptions=True
    )
    assert [type(d) for d in done if d] == [TargetMoved] * 3
    assert odd.git(source, "rev-parse", "main").decode().strip() == shas[done.index(None)]


async def test_a_lock_that_goes_away_is_awaited(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    run = await opened(repositories, source)
    sha = await candidate(run)
    lock = source / ".git/refs/heads/main.lock"
    lock.touch()
    task = asyncio.create_task(repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha))
    await asyncio.sleep(0.3)
    assert not task.done()
    lock.unlink()
    await task


async def test_bare_linked_worktree_sha256_and_shallow_targets(tmp_path: Path, repositories: LocalRepositories) -> None:
    plain = odd.plain(tmp_path / "plain")
    odd.git(tmp_path, "clone", "-q", "--bare", str(plain), "bare.git")
    odd.git(plain, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    sources = [tmp_path / "bare.git", tmp_path / "linked", odd.plain(tmp_path / "sha256", "--object-format=sha256"), odd.shallow(tmp_path / "shallow")]
    for number, source in enumerate(sources):
        run = await opened(repositories, source, f"r{number}")
        sha = await candidate(run)
        assert run.info.head_ref is not None
        await repositories.publish(run, sha, ref=run.info.head_ref, expected_old=run.info.head_sha)
        assert await repositories.update_checkout(run.info, run.info.head_sha, sha) == (run.info.work_tree is not None)
        assert odd.git(source, "rev-parse", "HEAD").decode().strip() == sha
        if run.info.work_tree:
            assert odd.git(source, "status", "--porcelain") == b""
    assert odd.git(plain, "status", "--porcelain") == b"" and odd.git(plain, "symbolic-ref", "HEAD") == b"refs/heads/main\n"


async def test_where_a_branch_is_checked_out(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    odd.git(source, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked\u00e9"))
    main, linked = await repositories.inspect(source), await repositories.inspect(tmp_path / "linked\u00e9")
    assert await repositories.checked_out_at(main, "refs/heads/side") == tmp_path / "linked\u00e9"
    assert await repositories.checked_out_at(main, "refs/heads/main") is None
    assert await repositories.checked_out_at(linked, "refs/heads/main") == source


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
async def test_a_read_only_source_is_refused_clearly(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    subprocess.run(["chmod", "-R", "a-w", str(source)], check=True)  # noqa: ASYNC221
    try:
        before = odd.state(source)
        run = await opened(repositories, source)
        sha = await candidate(run)
        with pytest.raises(RepositoryUnusable, match="cannot be written by this user"):
            await repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha)
        assert odd.state(source) == before
        assert await repositories.dirty(run.info) is None
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(source)], check=True)  # noqa: ASYNC221


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to stand for another user")
async def test_root_leaves_the_owner_in_charge(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    subprocess.run(["chown", "-R", "1234:1234", str(source)], check=True)  # noqa: ASYNC221
    run = await opened(repositories, source)
    sha = await candidate(run)
    await repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha)
    assert await repositories.update_checkout(run.info, run.info.head_sha, sha)
    await repositories.publish(run, sha, ref="refs/heads/capataz/x", expected_old=None)
    strangers = [p for p in source.rglob("*") if p.lstat().st_uid != 1234]
    assert strangers == []
