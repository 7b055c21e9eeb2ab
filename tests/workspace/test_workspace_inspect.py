"""Looking at sources of every shape; nothing is written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import odd_repositories as odd
import pytest

from capataz.contracts.errors import RepositoryUnusable
from capataz.workspace.repositories import LocalRepositories


async def test_plain_repository_and_its_subfolder(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "a b\u00e9\u7a7a")
    info = await repositories.inspect(source)
    assert (info.path, info.git_dir, info.common_dir) == (source, source / ".git", source / ".git")
    assert info.head_ref == "refs/heads/main" and not info.shallow and info.object_format == "sha1"
    assert info.head_sha == odd.git(source, "rev-parse", "HEAD").decode().strip()
    assert await repositories.inspect(source / "src/pkg") == info
    assert await repositories.inspect(source / ".git") == info


async def test_bare_worktree_submodule_detached(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.with_submodule(tmp_path / "s")
    odd.git(tmp_path, "clone", "-q", "--bare", str(source), "bare.git")
    bare = await repositories.inspect(tmp_path / "bare.git")
    assert bare.work_tree is None and bare.head_ref == "refs/heads/main"

    odd.git(source, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    linked = await repositories.inspect(tmp_path / "linked")
    assert linked.common_dir == source / ".git" and linked.git_dir == source / ".git/worktrees/linked"
    assert linked.work_tree == tmp_path / "linked" and linked.head_ref == "refs/heads/side"
    with pytest.raises(RepositoryUnusable, match="working folder"):
        await repositories.inspect(linked.git_dir)

    inner = await repositories.inspect(source / "vendor/inner")
    assert inner.git_dir == source / ".git/modules/vendor/inner" and inner.work_tree == source / "vendor/inner"

    odd.git(source, "checkout", "-q", "--detach")
    assert (await repositories.inspect(source)).head_ref is None
    for ref in ("refs/remotes/origin/main", "refs/tags/v1"):
        odd.git(source, "update-ref", ref, "HEAD")
        odd.git(source, "symbolic-ref", "HEAD", ref)
        assert (await repositories.inspect(source)).head_ref is None


async def test_shallow_and_sha256(tmp_path: Path, repositories: LocalRepositories) -> None:
    assert (await repositories.inspect(odd.shallow(tmp_path / "shallow"))).shallow
    info = await repositories.inspect(odd.plain(tmp_path / "sha256", "--object-format=sha256"))
    assert info.object_format == "sha256" and len(info.head_sha) == 64


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: odd.init(p), "no commit yet"),
        (lambda p: p.mkdir(), "not a git repository"),
        (lambda p: None, "no such folder"),
        (lambda p: p.write_bytes(b""), "not a folder"),
        (lambda p: (p.mkdir(), (p / ".git").write_text("gitdir: /nowhere\n")), "no git repository"),
        (lambda p: (p.mkdir(), (p / ".git").write_text("junk")), "not a git file"),
        (lambda p: (odd.plain(p), (p / ".git/refs/heads/main").write_text("1" * 40 + "\n")), "missing or damaged"),
        (lambda p: (odd.plain(p), (p / ".git/HEAD").write_text("junk\n")), "cannot use|cannot be read|git repository"),
    ],
)
async def test_refusals(tmp_path: Path, repositories: LocalRepositories, make, words: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "x")
    with pytest.raises(RepositoryUnusable, match=words):
        await repositories.inspect(tmp_path / "x")


async def test_revisions_and_refs(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    info = await repositories.inspect(source)
    odd.git(source, "branch", "caf\u00e9/x")
    assert await repositories.resolve(info, "main") == info.head_sha
    assert await repositories.ref(info, "refs/heads/caf\u00e9/x") == info.head_sha
    assert await repositories.ref(info, "refs/heads/caf\u00e9") is None
    for bad in ("nope", "--all", "-h", "", "a\nb", "main^{tree}:calc.py", "main:calc.py"):
        with pytest.raises(RepositoryUnusable):
            await repositories.resolve(info, bad)


async def test_nothing_is_written_before_promotion(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.every_kind(tmp_path / "s")
    (source / "calc.py").touch()                   # stat-dirty: a careless git would refresh the index
    before = odd.state(source)
    info = await repositories.inspect(source)
    run = await repositories.open_run("r", info)
    tree = await run.tree_of(info.head_sha)
    ws = await run.workspace("w", tree, base_sha=info.head_sha)
    (ws.mount.upper / "calc.py").write_bytes(b"1\n")
    await run.merge(tree, await ws.snapshot(), tree)
    assert await repositories.dirty(info, await ws.snapshot()) is None
    await repositories.remove_run("r", keep_objects=False)
    assert odd.state(source) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to stand for another user")
async def test_root_reads_the_repository_of_another_user(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    subprocess.run(["chown", "-R", "1234:1234", str(source)], check=True)  # noqa: ASYNC221
    run = await repositories.open_run("r", await repositories.inspect(source))
    assert await run.read(await run.tree_of(run.info.head_sha), b"calc.py")


async def test_borrowed_objects_of_the_source_are_found(tmp_path: Path, repositories: LocalRepositories) -> None:
    """A clone that shares objects of a clone that shares objects."""
    origin = odd.plain(tmp_path / 'o"r ig\u00e9')
    odd.git(tmp_path, "clone", "-q", "--shared", str(origin), "clone")
    odd.git(tmp_path, "clone", "-q", "--shared", "clone", "third")
    run = await repositories.open_run("r", await repositories.inspect(tmp_path / "third"))
    folder = await run.checkout(await run.tree_of(run.info.head_sha))
    assert (folder / "calc.py").read_bytes() == (origin / "calc.py").read_bytes()


async def test_a_source_whose_path_an_alternates_file_must_quote(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await repositories.open_run("r", await repositories.inspect(odd.plain(tmp_path / 'n"ew\nline')))
    assert await run.read(await run.tree_of(run.info.head_sha), b"calc.py")
