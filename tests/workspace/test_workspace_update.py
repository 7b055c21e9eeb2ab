"""The checked-out files after a promotion: dirtiness, update, crashes half way, other people's edits."""

from __future__ import annotations

import os
import traceback
import types
from pathlib import Path
from typing import Any

import odd_repositories as odd
import pytest
from conftest import in_sandbox, opened, workspace

from capataz.contracts.faults import NoFaults
from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace import updating
from capataz.workspace.repositories import LocalRepositories

_EVERYTHING = """
echo new > calc.py; rm -r src; echo file > src; mkdir -p d/e; echo x > d/e/f; chmod +x empty; rm blob.bin; ln -s calc.py blob.bin
rm inside; mkdir inside; echo i > inside/i; rm dangling; ln -s other dangling; rm Readme.md
"""


async def _promoted(repositories: LocalRepositories, source: Path, script: str = _EVERYTHING) -> tuple[str, str]:
    run = await opened(repositories, source)
    ws = await workspace(run)
    in_sandbox(ws, script)
    tree = await ws.snapshot()
    assert await repositories.dirty(run.info, tree) is None
    new = await run.commit(tree, [run.info.head_sha], "m", at=0)
    await repositories.publish(run, new, ref="refs/heads/main", expected_old=run.info.head_sha)
    return run.info.head_sha, new


async def test_update_is_what_git_would_do(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.every_kind(tmp_path / "s", attributes=False)
    odd.write(source, "untracked", b"mine")
    odd.write(source, "build/ignored", b"mine")
    old, new = await _promoted(repositories, source)
    info = await repositories.inspect(source)
    for _ in range(2):
        assert await repositories.update_checkout(info, old, new)
    assert odd.git(source, "status", "--porcelain") == b"?? untracked\n"
    assert odd.git(source, "diff-index", "--cached", "HEAD") == b""
    assert (source / "src").read_bytes() == b"file\n" and (source / "inside/i").exists() and (source / "blob.bin").is_symlink()
    assert os.access(source / "empty", os.X_OK) and (source / "build/ignored").read_bytes() == b"mine"
    assert not [p for p in source.rglob("*capataz*") if p.name not in {"capataz"}]
    assert not (source / ".git/index.lock").exists()
    odd.git(source, "fsck")


@pytest.mark.parametrize("backwards", [False, True])
async def test_a_kill_at_any_write_is_finished(tmp_path: Path, repositories: LocalRepositories, backwards: bool) -> None:
    """Ends the process before every single change to the disk, one after the other; the last call completes."""
    source = odd.every_kind(tmp_path / "s", attributes=False)
    old, new = await _promoted(repositories, source)
    info = await repositories.inspect(source)
    if backwards:
        assert await repositories.update_checkout(info, old, new)
        odd.git(source, "update-ref", "refs/heads/main", old)
        old, new = new, old
    killed = 0
    while _update_in_child(info, old, new, tmp_path, stop_at=killed) == 9:
        killed += 1
        assert any(odd.git(source, "diff-index", "--cached", sha) == b"" for sha in (old, new))
    assert killed > 10
    assert await repositories.update_checkout(info, old, new)
    assert odd.git(source, "status", "--porcelain", "--untracked-files=all") == b""
    assert odd.git(source, "diff-index", "--cached", "HEAD") == b""
    assert sorted(p.name for p in (source / ".git").glob("index*")) == ["index"]


def _update_in_child(info: RepositoryInfo, old: str, new: str, folder: Path, *, stop_at: int) -> int:
    """Exit code: 0 done, 9 stopped, 1 failed. The disk is in the state that a kill at that moment leaves."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = stop_at

    def guarded(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return real(*args, **kwargs)

        return call

    try:
        proxy = types.ModuleType("os")
        proxy.__dict__.update(os.__dict__)
        for name in ("unlink", "rename", "rmdir", "mkdir", "symlink", "fsync", "open"):
            setattr(proxy, name, guarded(getattr(os, name)))
        updating.os = proxy  # type: ignore[attr-defined]
        for name in ("unlink", "rename", "hardlink_to"):
            setattr(Path, name, guarded(getattr(Path, name)))
        done = updating.update_checkout(info, old, new, scratch_folder=folder / "scratch", locks=folder / "locks", faults=NoFaults())
        os._exit(0 if done else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


async def test_other_peoples_edits_are_never_overwritten(tmp_path: Path, repositories: LocalRepositories) -> None:
    edits = {
        "edit": lambda s: (s / "calc.py").write_bytes(b"mine\n"),
        "untracked in the way": lambda s: odd.write(s, "d/e/f", b"mine"),
        "file where a folder comes": lambda s: (s / "d").write_bytes(b"mine"),
        "link where a folder comes": lambda s: (s / "d").symlink_to("/tmp"),
        "folder where a file comes": lambda s: odd.write(s, "src/mine", b"mine"),
        "mode": lambda s: (s / "calc.py").chmod(0o755),
        "kind": lambda s: ((s / "calc.py").unlink(), (s / "calc.py").symlink_to("x")),
        "staged": lambda s: odd.git(s, "update-index", "--cacheinfo", f"100755,{odd.git(s, 'rev-parse', 'HEAD~:calc.py').decode().strip()},calc.py"),
        "lock": lambda s: (s / ".git/index.lock").touch(),
        "another branch": lambda s: odd.git(s, "symbolic-ref", "HEAD", "refs/heads/other"),
        "newer commit": lambda s: odd.git(s, "update-ref", "refs/heads/main", odd.git(s, "rev-parse", "HEAD~").decode().strip()),
    }
    updating._LOCK_WAIT_S = 0.1
    for number, (what, edit) in enumerate(edits.items()):
        source = odd.every_kind(tmp_path / f"s{number}")
        entry = LocalRepositories(tmp_path / f"home{number}")
        old, new = await _promoted(entry, source)
        info = await entry.inspect(source)
        edit(source)
        before = odd.state(source)
        assert not await entry.update_checkout(info, old, new), what
        after = odd.state(source)
        assert {k: v[2] for k, v in after.items()} == {k: v[2] for k, v in before.items()}, what
        entry.close()


async def test_edits_after_a_finished_update_stay(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    old, new = await _promoted(repositories, source, "echo new > calc.py")
    info = await repositories.inspect(source)
    assert await repositories.update_checkout(info, old, new)
    (source / "calc.py").write_bytes(b"mine\n")
    assert await repositories.update_checkout(info, old, new)
    assert (source / "calc.py").read_bytes() == b"mine\n"


async def test_why_dirty(tmp_path: Path, repositories: LocalRepositories) -> None:
    cases = {
        "has local changes": lambda s: (s / "calc.py").write_bytes(b"mine\n"),
        "has local changes ": lambda s: (s / "calc.py").chmod(0o755),
        "is deleted": lambda s: (s / "calc.py").unlink(),
        "is staged": lambda s: (odd.write(s, "new", b"x"), odd.git(s, "add", "new")),
        "is staged ": lambda s: (odd.write(s, "new", b"x"), odd.git(s, "add", "-N", "new")),
        "removal of calc.py is staged": lambda s: odd.git(s, "rm", "-q", "--cached", "calc.py"),
        "a merge is under way": lambda s: (s / ".git/MERGE_HEAD").write_text("x"),
        "untracked d/f would be overwritten": lambda s: odd.write(s, "d/f", b"x"),
        "untracked d would be overwritten": lambda s: (s / "d").symlink_to("/tmp"),
        "untracked x.log/mine would be overwritten": lambda s: odd.write(s, "x.log/mine", b"x"),
    }
    run = tree = None
    for number, (words, edit) in enumerate(cases.items()):
        source = odd.plain(tmp_path / f"s{number}")
        run = await opened(repositories, source, f"r{number}")
        ws = await workspace(run)
        in_sandbox(ws, "mkdir d; echo x > d/f; echo x > x.log")
        tree = await ws.snapshot()
        (source / "free").write_bytes(b"an untracked file that nothing overwrites")
        assert await repositories.dirty(run.info, tree) is None
        edit(source)
        reason = await repositories.dirty(run.info, tree)
        assert reason and words.strip() in reason, (words, reason)


async def test_touched_smudged_split_and_sparse_checkouts_are_clean(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    (source / "calc.py").touch()
    info = await repositories.inspect(source)
    assert await repositories.dirty(info) is None
    odd.git(source, "update-index", "--split-index")
    odd.write(source, "src/more", b"x")
    odd.git(source, "add", ".")
    odd.git(source, "commit", "-q", "-m", "more")
    assert list((source / ".git").glob("sharedindex.*"))
    old, new = await _promoted(repositories, source, "echo new > src/more; rm calc.py")
    assert await repositories.update_checkout(await repositories.inspect(source), old, new)
    assert odd.git(source, "status", "--porcelain") == b""

    sparse = odd.plain(tmp_path / "sparse")
    odd.write(sparse, "other/x", b"x")
    odd.commit(sparse)
    odd.git(sparse, "sparse-checkout", "set", "--cone", "--sparse-index", "other")
    assert not (sparse / "src").exists()
    run = await opened(repositories, sparse, "run-2")
    ws = await workspace(run)
    in_sandbox(ws, "echo new > src/pkg/long.py; echo new > other/x")
    new = await run.commit(await ws.snapshot(), [run.info.head_sha], "m", at=0)
    assert await repositories.dirty(run.info, await ws.snapshot()) is None
    await repositories.publish(run, new, ref="refs/heads/main", expected_old=run.info.head_sha)
    assert await repositories.update_checkout(run.info, run.info.head_sha, new)
    assert odd.git(sparse, "status", "--porcelain") == b"" and not (sparse / "src").exists()

    crlf = odd.plain(tmp_path / "crlf")
    odd.write(crlf, ".gitattributes", b"*.py text eol=crlf\n")
    odd.commit(crlf)
    odd.git(crlf, "checkout-index", "-f", "-a")
    (crlf / "calc.py").unlink()
    odd.git(crlf, "checkout", "-q", "calc.py")
    assert b"\r\n" in (crlf / "calc.py").read_bytes()
    assert await repositories.dirty(await repositories.inspect(crlf)) is None
