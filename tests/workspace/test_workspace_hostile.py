"""A repository whose configuration, hooks and attributes name programs: none is started, from beginning to end."""

from __future__ import annotations

from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import in_sandbox, opened, workspace

from capataz.contracts.errors import CapatazError
from capataz.workspace.repositories import LocalRepositories


async def test_nothing_of_the_repository_runs(tmp_path: Path, repositories: LocalRepositories) -> None:
    source, mark = odd.hostile(tmp_path / "s")
    with pytest.raises(AssertionError):
        odd.git(source, "commit", "-q", "-a", "-m", "x")      # the trap works: git itself falls into it
    assert mark.exists()
    mark.unlink()
    run = await opened(repositories, source)
    base = await run.tree_of(run.info.head_sha)
    assert await repositories.resolve(run.info, "main") == run.info.head_sha
    trees: list[str] = []
    for name, script in {"a": "sed -i s/add/plus/ calc.py", "b": "sed -i s/return/yield/ calc.py; echo x > new"}.items():
        ws = await workspace(run, name)
        in_sandbox(ws, script + "; git status > /tmp/s; git diff > /tmp/d; git commit -q -a -m mine")
        trees.append(await ws.snapshot())
        await ws.restore(base)
    assert (await run.merge(base, *trees)).tree or (await run.merge(base, *trees)).conflicts
    assert b"plus" in await run.diff(base, trees[0])
    await run.ignored(base, [b"x.log"])
    sha = await run.commit(trees[1], [run.info.head_sha], "m", at=0)
    (source / "calc.py").touch()
    assert await repositories.dirty(run.info, trees[1]) is None
    await repositories.checked_out_at(run.info, "refs/heads/main")
    await repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha)
    await repositories.publish(run, sha, ref="refs/heads/new", expected_old=None)
    assert await repositories.update_checkout(run.info, run.info.head_sha, sha)
    await repositories.remove_run("run-1", keep_objects=False)
    assert not mark.exists()
    assert (source / "new").read_bytes() == b"x\n"


async def test_the_hosts_own_git_configuration_takes_no_part(tmp_path: Path, repositories: LocalRepositories, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    home, mark = tmp_path / "userhome", tmp_path / "mark"
    odd.write(home, ".gitconfig", f"[core]\n\tfsmonitor = touch {mark}\n\thooksPath = {home}/hooks\n\tautocrlf = true\n[include]\n\tpath = x\n".encode())
    odd.write(home, "hooks/reference-transaction", f"#!/bin/sh\ntouch {mark}\n".encode(), 0o755)
    odd.write(home, ".config/git/attributes", b"* text eol=crlf\n")
    for name, value in {"HOME": home, "XDG_CONFIG_HOME": home / ".config", "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "GIT_EXTERNAL_DIFF": f"touch {mark}"}.items():
        monkeypatch.setenv(name, str(value))
    source = odd.every_kind(tmp_path / "s")
    run = await opened(repositories, source)
    ws = await workspace(run)
    assert await ws.snapshot() == await run.tree_of(run.info.head_sha)
    in_sandbox(ws, "printf 'a\\r\\nb\\n' > calc.py")
    tree = await ws.snapshot()
    assert await run.read(tree, b"calc.py") == b"a\r\nb\n" and b"+a\r\n" in await run.diff(await run.tree_of(run.info.head_sha), tree)
    sha = await run.commit(tree, [run.info.head_sha], "m", at=0)
    await repositories.publish(run, sha, ref="refs/heads/main", expected_old=run.info.head_sha)
    assert await repositories.update_checkout(run.info, run.info.head_sha, sha)
    assert (source / "calc.py").read_bytes() == b"a\r\nb\n" and not mark.exists()


async def test_a_crafted_tree_writes_nowhere_else(tmp_path: Path, repositories: LocalRepositories) -> None:
    """Trees that no honest git makes: a link and a folder of one name, ``..``, ``.git``."""
    outside = tmp_path / "outside"
    outside.mkdir()
    source = odd.plain(tmp_path / "s")
    blob = odd.git(source, "hash-object", "-w", "--stdin", stdin=b"evil").decode().strip()
    link = odd.git(source, "hash-object", "-w", "--stdin", stdin=str(outside).encode()).decode().strip()
    inner = odd.git(source, "mktree", stdin=f"100644 blob {blob}\tf\n".encode()).decode().strip()
    raw = bytes.fromhex
    crafted = [
        b"120000 a\0" + raw(link) + b"40000 a\0" + raw(inner),
        b"40000 ..\0" + raw(inner),
        b"40000 .git\0" + raw(inner),
        b"40000 .GIT\0" + raw(inner),
        b"100644 ../x\0" + raw(blob),
        b"100644 a\0" + raw(blob) + b"100644 a\0" + raw(blob),
    ]
    run = await opened(repositories, source)
    for data in crafted:
        tree = odd.git(source, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=data).decode().strip()
        with pytest.raises(CapatazError):
            await run.checkout(tree)
        assert not list(outside.iterdir()) and not list((tmp_path / "home/checkouts").iterdir())
