"""Restoring: the files become exactly a tree, and a restart finds the workspace as it was."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import bwrap_argv, in_sandbox, opened, workspace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capataz.workspace.local_workspace import LocalWorkspace
from capataz.workspace.repositories import LocalRepositories

# Names collide on purpose: files become folders, folders links, and back.
_NAMES = ["calc.py", "src", "src/pkg", "src/pkg/long.py", "src/pkg/run.sh", "src/new", "a", "a/b", "a/b/c", "vendor/inner/x", "vendor", ".gitignore", "x.log", "é\n"]
_STEP = st.tuples(st.sampled_from(["write", "remove", "link", "mkdir", "chmod", "move", "opaque"]), st.sampled_from(_NAMES), st.sampled_from(_NAMES))

_PROGRAM = """
import os, shutil, sys
def gone(p):
    if os.path.islink(p) or os.path.isfile(p): os.unlink(p)
    elif os.path.isdir(p): shutil.rmtree(p)
def make(p):
    d = os.path.dirname(p)
    while d:
        if os.path.islink(d) or os.path.isfile(d): os.unlink(d)
        d = os.path.dirname(d)
    os.makedirs(os.path.dirname(p) or '.', exist_ok=True)
for n, (what, a, b) in enumerate(eval(sys.stdin.read())):
    try:
        if what == 'write': make(a); gone(a) if os.path.isdir(a) or os.path.islink(a) else None; open(a, 'a').write(str(n))
        elif what == 'remove': gone(a)
        elif what == 'link': make(a); gone(a); os.symlink(b, a)
        elif what == 'mkdir': make(a); gone(a) if not os.path.isdir(a) or os.path.islink(a) else None; os.makedirs(a, exist_ok=True)
        elif what == 'chmod' and not os.path.islink(a) and os.path.isfile(a): os.chmod(a, 0o755 if n % 2 else 0o600)
        elif what == 'move' and os.path.lexists(a) and not (b + '/').startswith(a + '/') and not (a + '/').startswith(b + '/'):
            make(b)
            if os.path.lexists(a): gone(b); shutil.move(a, b)
        elif what == 'opaque': make(a); gone(a); os.makedirs(a); open(a + '/only', 'w').write(str(n))
    except NotADirectoryError:
        pass
"""


def _do(ws: LocalWorkspace, steps: list[tuple[str, str, str]]) -> None:
    argv = [*bwrap_argv(ws), str(Path(sys.base_prefix) / "bin/python3"), "-c", _PROGRAM]
    done = subprocess.run(argv, input=repr(steps).encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def _tree_by_git(ws: LocalWorkspace) -> str:
    """What git itself makes of the files as a process in the workspace sees them. A copy without ``.git``: else git would
    take an empty submodule for what its index says."""
    script = """
    rm -rf /tmp/copy; mkdir /tmp/copy; tar cf - --exclude=./.git . | tar xf - -C /tmp/copy; cd /tmp/copy
    git init -q .; git config core.quotePath false; printf '* -text -filter\\n' > .git/info/attributes; git add -A -f .; git write-tree
    """
    return in_sandbox(ws, script).decode().strip()


async def _any_operations(folder: Path, rounds: list[list[tuple[str, str, str]]], seed: int) -> None:
    entry = LocalRepositories(folder / "home")
    run = await opened(entry, odd.plain(folder / "s"))
    ws = await workspace(run)
    trees = [await run.tree_of(run.info.head_sha)]
    for steps in rounds:
        _do(ws, steps)
        trees.append(await ws.snapshot())
        assert trees[-1] == _tree_by_git(ws)
    random.Random(seed).shuffle(trees)
    for tree in trees:
        await ws.restore(tree)
        assert await ws.snapshot() == tree == _tree_by_git(ws)
    await ws.remove()
    entry.close()


_ROUNDS = st.lists(st.lists(_STEP, min_size=1, max_size=8), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(rounds=_ROUNDS, seed=st.integers())
async def test_any_operations_give_what_git_sees_and_restore_to_it(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str, str]]], seed: int
) -> None:
    await _any_operations(tmp_path_factory.mktemp("any"), rounds, seed)


@pytest.mark.sweep
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rounds=_ROUNDS, seed=st.integers())
async def test_many_operations_give_what_git_sees_and_restore_to_it(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str, str]]], seed: int
) -> None:
    await _any_operations(tmp_path_factory.mktemp("many"), rounds, seed)


@pytest.mark.parametrize("overlay", [True, False])
async def test_restore_is_exact(tmp_path: Path, overlay: bool) -> None:
    entry = LocalRepositories(tmp_path / "home", overlay=overlay)
    run = await opened(entry, odd.every_kind(tmp_path / "s"))
    ws = await workspace(run)
    base = await run.tree_of(run.info.head_sha)
    in_sandbox(ws, "rm -r src; echo x > src; chmod 777 calc.py; mkdir -p build emptydir; echo o > build/o; echo y > calc.py")
    middle = await ws.snapshot()
    in_sandbox(ws, "rm src; mkdir src; echo z > src/z; rm -r build; mkfifo build; chmod 600 calc.py; touch .git/index.lock")
    await ws.restore(middle)
    assert in_sandbox(ws, "cat src build/o calc.py; ls; stat -c %a calc.py; git status --porcelain | head -3").split(b"\n")[:3] == [b"x", b"o", b"y"]
    assert not in_sandbox(ws, "find . -name emptydir -o -name '*.lock' -o -type p")
    await ws.restore(base)
    assert await ws.snapshot() == base
    assert in_sandbox(ws, "git status --porcelain --ignored") == b""
    entry.close()


async def test_restoring_what_is_there_keeps_the_files(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "echo 1 > calc.py; git stash -q; echo 2 > calc.py; touch .git/index.lock")
    tree, upper = await ws.snapshot(), ws.mount.upper
    await ws.restore(tree)
    assert ws.mount.upper == upper
    in_sandbox(ws, "git checkout -q calc.py; git stash pop -q; grep 1 calc.py")


@pytest.mark.parametrize("overlay", [True, False])
async def test_a_gitlink_comes_and_goes(tmp_path: Path, overlay: bool) -> None:
    repositories = LocalRepositories(tmp_path / "home", overlay=overlay)
    run = await opened(repositories, odd.with_submodule(tmp_path / "s"))
    ws = await workspace(run)
    base = await run.tree_of(run.info.head_sha)
    in_sandbox(ws, "echo x > vendor/inner/x")
    filled = await ws.snapshot()
    assert {(c.status, c.path) for c in await run.changes(base, filled)} == {("D", b"vendor/inner"), ("A", b"vendor/inner/x")}
    in_sandbox(ws, "rm -r vendor")
    gone = await ws.snapshot()
    for tree in (filled, base, gone, filled, gone, base):
        await ws.restore(tree)
        assert await ws.snapshot() == tree
    other = await run.workspace("w2", filled, base_sha=run.info.head_sha)
    await other.restore(base)
    assert await other.snapshot() == base
    assert in_sandbox(other, "ls -A vendor/inner") == b""
    repositories.close()


async def test_another_process_finds_the_workspace(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run, hidden=["src/**"])
    in_sandbox(ws, "echo x > y")
    tree = await ws.snapshot()
    again = await workspace(await opened(LocalRepositories(tmp_path / "home"), tmp_path / "s"))
    assert again.mount == ws.mount and again.mount.hidden == (b"src",)
    assert await again.snapshot() == tree
    assert (await workspace(run)) is ws


async def test_one_object_guards_a_workspace_also_after_the_source_moved(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    run = await opened(repositories, source)
    ws, base = await workspace(run), run.info.head_sha
    odd.write(source, "more", b"x")
    moved = odd.commit(source)
    again = await opened(repositories, source)
    assert again.info.head_sha == moved and await again.tree_of(moved) != await again.tree_of(base)
    assert await again.workspace("w1", await again.tree_of(base), base_sha=base) is ws


async def test_lost_checkout_is_made_again(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "echo x > y")
    items = [item async for item in repositories.leftovers()]
    assert {(i["kind"], i.get("used")) for i in items} == {("run", None), ("workspace", None), ("checkout", True)}
    for item in items:
        if item["kind"] == "checkout":
            await repositories.remove_leftover(item)
    again = await workspace(await opened(LocalRepositories(tmp_path / "home"), tmp_path / "s"))
    assert in_sandbox(again, "cat y; test -f calc.py") == b"x\n"
