"""What is computed on trees: merges, filters, ignores, commits, patches, edits."""

from __future__ import annotations

import itertools
from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import in_sandbox, opened, workspace

from capataz.contracts.errors import GitFailed
from capataz.workspace.index_file import parse_index, serialize_index
from capataz.workspace.repositories import LocalRepositories
from capataz.workspace.run_repository import LocalRunRepository


async def _after(run: LocalRunRepository, name: str, script: str) -> str:
    ws = await workspace(run, name)
    in_sandbox(ws, script)
    return await ws.snapshot()


async def test_a_rename_and_an_edit_merge_whoever_comes_first(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    base = await run.tree_of(run.info.head_sha)
    trees = [
        await _after(run, "a", "mv src/pkg/long.py src/pkg/renamed.py"),
        await _after(run, "b", "sed -i 's/^line 30$/thirty/' src/pkg/long.py"),
        await _after(run, "c", "echo same > new; chmod +x calc.py"),
        await _after(run, "d", "echo same > new"),
    ]
    results: set[str] = set()
    for order in itertools.permutations(trees):
        tree = base
        for theirs in order:
            merged = await run.merge(base, tree, theirs)
            assert merged.tree, merged.conflicts
            tree = merged.tree
        results.add(tree)
    (tree,) = results
    assert b"thirty\n" in (await run.read(tree, b"src/pkg/renamed.py") or b"")
    assert await run.read(tree, b"src/pkg/long.py") is None and await run.read(tree, b"new") == b"same\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "path", "words"),
    [
        ("echo 1 > calc.py", "echo 2 > calc.py", b"calc.py", "content"),
        ("rm calc.py", "echo 2 > calc.py", b"calc.py", "deleted in"),
        ("echo 1 > new", "mkdir new; echo 2 > new/x", b"new", "directory in the way"),
        ("echo 1 > new", "echo 2 > new", b"new", "add/add"),
        ("echo 1 > new", "ln -s x new", b"new", "distinct types|modes|content"),
        ("mv calc.py one.py", "mv calc.py two.py", b"calc.py", "renamed"),
        ("printf '\\0\\1' > bin", "printf '\\0\\2' > bin", b"bin", "binary|content"),
        ("echo 1 > \"$(printf 'a\\nb\\351')\"", "echo 2 > \"$(printf 'a\\nb\\351')\"", b"a\nb\xe9", "add/add"),
    ],
)
async def test_conflicts_are_named(tmp_path: Path, repositories: LocalRepositories, ours: str, theirs: str, path: bytes, words: str) -> None:
    import re

    run = await opened(repositories, odd.plain(tmp_path / "s"))
    base = await run.tree_of(run.info.head_sha)
    one, two = await _after(run, "a", ours), await _after(run, "b", theirs)
    for left, right in ((one, two), (two, one)):
        result = await run.merge(base, left, right)
        assert result.tree is None
        kinds = dict(result.conflicts)
        assert path in kinds, result.conflicts
        assert re.search(words, kinds[path]) and "\n" not in kinds[path]


async def test_attributes_of_the_tree_change_no_merge(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    odd.write(source, ".gitattributes", b"a merge=union\nb merge=binary\nc text eol=crlf\n* -diff\n")
    for name in ("a", "b", "c"):
        odd.write(source, name, b"".join(b"%d\n" % n for n in range(20)))
    odd.commit(source)
    run = await opened(repositories, source)
    base = await run.tree_of(run.info.head_sha)
    one = await _after(run, "w1", "sed -i 's/^3$/three/' a b c")
    two = await _after(run, "w2", "sed -i 's/^15$/fifteen/' a b c; sed -i 's/^3$/drei/' a")
    assert [p for p, _ in (await run.merge(base, one, two)).conflicts] == [b"a"]       # no union
    two = await run.filtered(base, two, [b"a"])
    merged = (await run.merge(base, one, two)).tree
    assert merged and b"three\n4\n" in (await run.read(merged, b"b") or b"") and b"\r" not in (await run.read(merged, b"c") or b"")
    patch = await run.diff(base, merged)
    assert b"+three" in patch and b"Binary" not in patch


async def test_diff_names_modes_binaries_and_deletions_and_applies(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.every_kind(tmp_path / "s")
    run = await opened(repositories, source)
    base = await run.tree_of(run.info.head_sha)
    new = await _after(run, "w", "chmod +x calc.py; printf '\\0x' > blob.bin; rm empty; ln -sf b inside; rm -r src; echo f > src; printf 'é' > 'é'")
    patch = await run.diff(base, new)
    for words in (b"old mode 100644\nnew mode 100755", b"GIT binary patch", b"deleted file mode 100644", b'"b/\\303\\251"'):
        assert words in patch
    short = await run.diff(base, new, binary=False)
    assert b"Binary files a/blob.bin and b/blob.bin differ" in short and b"GIT binary patch" not in short
    (source / ".gitattributes").unlink()
    odd.git(source, "config", "core.autocrlf", "false")
    odd.git(source, "rm", "-q", "--cached", ".gitattributes")
    odd.git(source, "apply", "--cached", "-", stdin=patch)
    odd.git(source, "reset", "-q", "--soft", "HEAD")
    odd.git(source, "update-index", "--add", "--cacheinfo", f"100644,{odd.git(source, 'rev-parse', 'HEAD:.gitattributes').decode().strip()},.gitattributes")
    assert odd.git(source, "write-tree").decode().strip() == new


async def test_filtered_puts_back_what_the_base_has(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    base = await run.tree_of(run.info.head_sha)
    new = await _after(run, "w", "echo 1 > calc.py; mkdir build; echo o > build/o; rm -r src; mkdir -p src/pkg/long.py; echo x > src/pkg/long.py/x; chmod +x .gitignore")
    back = await run.filtered(base, new, [b"build/o", b"calc.py", b"src/pkg/long.py/x", b"src/pkg/long.py", b"not/there", b"calc.py/below"])
    assert {(c.status, c.path) for c in await run.changes(base, back)} == {("M", b".gitignore"), ("D", b"src/pkg/run.sh")}
    assert await run.filtered(base, new, [c.path for c in await run.changes(base, new)]) == base
    odd.git(run.git_dir, "fsck", "--strict", back)


async def test_ignored_by_the_base_and_by_the_built_in_list(tmp_path: Path, repositories: LocalRepositories) -> None:
    source = odd.plain(tmp_path / "s")
    odd.write(source, "src/.gitignore", b"*.tmp\n!keep.tmp\n!__pycache__/\n")
    (source / "linked").symlink_to("src")
    odd.commit(source)
    run = await opened(repositories, source)
    base = await run.tree_of(run.info.head_sha)
    ignored = [b"a.log", b"deep/a.log", b"build/x", b"src/build/y", b"src/a.tmp", b"__pycache__/m.pyc", b"x/node_modules/a/b", b".venv/bin/py",
               b"\xe9.log", b":(top)a.log", b"new\nline.log", b"linked/a.log"]
    kept = [b"a.txt", b"src/keep.tmp", b"a.tmp", b"build", b":(exclude)x", b"-x", b"linked/a.tmp", b"src/__pycache__/data"]
    assert await run.ignored(base, [*ignored, *kept]) == set(ignored)
    assert await run.ignored(base, []) == set()


async def test_commits_are_deterministic(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    tree = await run.tree_of(run.info.head_sha)
    sha = await run.commit(tree, [run.info.head_sha], "subject\r\n\n\udce9 body \0é\n\n", at=1_700_000_000.9)
    assert sha == await run.commit(tree, [run.info.head_sha], "subject\r\n\n\udce9 body \0é\n\n", at=1_700_000_000.1)
    assert odd.git(run.git_dir, "log", "-1", "--format=%an %ae %ad %cd %s", "--date=raw", sha).startswith(b"Capataz capataz@localhost 1700000000 +0000 1700000000")
    odd.git(run.git_dir, "fsck", "--strict", sha)
    with pytest.raises(GitFailed):
        await run.tree_of("0" * 40)


def test_index_versions(tmp_path: Path) -> None:
    source = odd.odd_names(tmp_path / "s")
    odd.write(source, "p" * 200 + "/" + "q" * 200, b"x")
    odd.git(source, "add", "-N", ".")
    for version in ("2", "3", "4"):
        odd.git(source, "update-index", "--index-version", version)
        listed = odd.git(source, "ls-files", "-z", "--stage")
        index = parse_index((source / ".git/index").read_bytes(), 20)
        assert b"".join(b"%s %s %d\t%s\0" % (e.mode.encode(), e.sha.encode(), e.stage, e.path) for e in index.entries) == listed
        (source / ".git/index").write_bytes(serialize_index(index.entries, 20))
        assert odd.git(source, "ls-files", "-z", "--stage") == listed
        assert odd.git(source, "diff-files", "--name-only") == (b"p" * 200 + b"/" + b"q" * 200 + b"\n")
