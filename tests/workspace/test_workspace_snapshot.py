"""Snapshots of what commands did inside a real overlay."""

from __future__ import annotations

import os
from pathlib import Path

import odd_repositories as odd
import pytest
from conftest import in_sandbox, opened, python_in_sandbox, workspace

from capataz.contracts.errors import GitFailed
from capataz.workspace.batch import Batch
from capataz.workspace.repositories import LocalRepositories


async def test_the_untouched_workspace_is_its_tree(tmp_path: Path, repositories: LocalRepositories) -> None:
    for make in (odd.every_kind, odd.odd_names, odd.with_submodule, odd.shallow):
        run = await opened(repositories, make(tmp_path / make.__name__), make.__name__)
        ws = await workspace(run)
        assert await ws.snapshot() == await run.tree_of(run.info.head_sha)
        assert in_sandbox(ws, "git status --porcelain") == b""
        assert await ws.snapshot() == await run.tree_of(run.info.head_sha)
        assert await ws.specials() == []


async def test_checkout_holds_the_blobs_bytes_whatever_the_attributes_say(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.every_kind(tmp_path / "s"))
    tree = await run.tree_of(run.info.head_sha)
    folder = await run.checkout(tree)
    for entry in await run.entries(tree):
        path = folder / os.fsdecode(entry.path)
        data = os.fsencode(path.readlink()) if entry.mode == "120000" else path.read_bytes()
        assert data == await run.read(tree, entry.path)
        if entry.mode != "120000":
            assert path.lstat().st_mode & 0o777 == (0o755 if entry.mode == "100755" else 0o644)
    assert (folder / "mixed.txt").read_bytes() == b"one\r\ntwo\n$Id$"


async def test_edits_deletions_whiteouts_and_opaque_folders(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.every_kind(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(
        ws,
        """
        rm calc.py; rm -r src; mkdir src; echo new > src/new; mv dos.txt moved.txt; chmod +x empty; chmod 000 mixed.txt
        rm inside; ln -s README.md inside; rm dangling; mkdir dangling; echo x > dangling/x; rm blob.bin; ln -s x blob.bin
        mkdir emptydir; echo ignored > a.log; mkdir build; echo o > build/o; rm Readme.md
        """,
    )
    tree, old = await ws.snapshot(), await run.tree_of(run.info.head_sha)
    found = {c.path: (c.status, c.old_mode, c.new_mode) for c in await run.changes(old, tree)}
    no = "000000"
    assert found == {
        b"Readme.md": ("D", "100644", no), b"a.log": ("A", no, "100644"), b"blob.bin": ("T", "100644", "120000"),
        b"build/o": ("A", no, "100644"), b"calc.py": ("D", "100644", no), b"dangling": ("D", "120000", no),
        b"dangling/x": ("A", no, "100644"), b"dos.txt": ("D", "100644", no), b"empty": ("M", "100644", "100755"),
        b"inside": ("M", "120000", "120000"), b"moved.txt": ("A", no, "100644"), b"src/new": ("A", no, "100644"),
        b"src/pkg/long.py": ("D", "100644", no), b"src/pkg/run.sh": ("D", "100755", no),
    }
    assert await run.read(tree, b"mixed.txt") == b"one\r\ntwo\n$Id$"
    assert await ws.specials() == []


async def test_odd_names_byte_for_byte(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.odd_names(tmp_path / "s"))
    ws = await workspace(run)
    python_in_sandbox(ws, f"for n in {odd.ODD_NAMES!r}:\n open(n, 'ab').write(b'more\\n')")
    old, tree = await run.tree_of(run.info.head_sha), await ws.snapshot()
    assert {c.path for c in await run.changes(old, tree)} == set(odd.ODD_NAMES)
    patch = await run.diff(old, tree)
    assert patch.count(b"+more") == len(odd.ODD_NAMES)
    assert b'"a/new\\nline.txt"' in patch and b'"a/latin-\\351.txt"' in patch


async def test_root_git_is_left_out_whatever_it_is(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    tree = await run.tree_of(run.info.head_sha)
    for number, script in enumerate(["rm -r .git", "rm -r .git; echo x > .git", "rm -r .git; ln -s /etc .git", "echo evil > .git/hooks"]):
        ws = await workspace(run, f"w{number}")
        in_sandbox(ws, script)
        assert await ws.snapshot() == tree
        assert await ws.specials() == []


async def test_specials_and_reserved_names(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "mkfifo src/pipe; git init -q src/inner; echo x > src/inner/f; git init -q --bare bare.git; git init -q --bare src/gone")
    in_sandbox(ws, "rm -r src/gone/refs; mkdir linked; echo 'gitdir: /etc' > linked/.git; mkdir deep; mkdir deep/.git")
    names = [b"src/.GIT", b".Git", "src/.g\u200cit".encode(), b"src/git~1", b"src/.git. .", b"src/GIT~1", b"src/.git::$INDEX_ALLOCATION",
             "src/.\uff47\uff49\uff54".encode(), b"src/x\\.git"]
    python_in_sandbox(ws, f"for n in {names!r}:\n open(n, 'wb').close()")
    python_in_sandbox(ws, "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('sock')")
    tree = await ws.snapshot()
    expected = {(n, "reserved") for n in names} | {
        (b"src/pipe", "fifo"), (b"sock", "socket"), (b"src/inner", "embedded_repository"), (b"bare.git", "embedded_repository"),
        (b"linked", "embedded_repository"), (b"deep", "embedded_repository"),
    }
    assert set(await ws.specials()) == expected
    listed = {e.path for e in await run.entries(tree)}
    assert b"src/inner/f" in listed and b"bare.git/HEAD" in listed and not {p for p, _ in expected} & listed
    assert not any(b".git" in p.split(b"/") for p in listed)
    odd.git(run.git_dir, "fsck", "--strict", tree)


async def test_innocent_names_are_not_reserved(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "echo x > .gitignore2; echo x > .gitattributes; echo > x.git; echo > 'git~2'; mkdir -p t/HEAD; echo > t/HEAD/x; echo x > .github")
    tree = await ws.snapshot()
    assert await ws.specials() == []
    assert {b"x.git", b"git~2", b"t/HEAD/x", b".gitattributes"} <= {e.path for e in await run.entries(tree)}


async def test_a_file_that_is_rewritten_with_equal_size_and_time_is_seen(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    seen: set[str] = set()
    for number in range(30):
        in_upper = ws.mount.upper / "same.txt"
        in_upper.write_bytes(b"%03d" % number)
        os.utime(in_upper, (1_000_000, 1_000_000))
        seen.add(await ws.snapshot())
    assert len(seen) == 30


async def test_nobody_follows_links_of_the_worker(tmp_path: Path, repositories: LocalRepositories) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("s3cret")
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, f"rm -r src; ln -s {secret} src; ln -s {secret}/key k; rm -r .git; ln -s {secret} .git")
    tree = await ws.snapshot()
    entries = {e.path: e.mode for e in await run.entries(tree)}
    assert entries[b"src"] == entries[b"k"] == "120000" and b"src/key" not in entries
    await ws.restore(await run.tree_of(run.info.head_sha))
    assert (secret / "key").read_text() == "s3cret" and [p.name for p in secret.iterdir()] == ["key"]
    assert (ws.mount.upper / ".git/HEAD").is_file()


async def test_deep_folders_are_refused_and_removed(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    python_in_sandbox(ws, "import os\nfor i in range(1200):\n os.mkdir('d' * 20)\n os.chdir('d' * 20)\nopen('f', 'w').close()\nos.chmod('.', 0)")
    await ws.snapshot()
    assert [kind for _, kind in await ws.specials()] == ["reserved"]
    await ws.remove()
    assert not list((run.workspaces).iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
async def test_unreadable_files_and_folders_of_an_ordinary_user(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "mkdir d; echo x > d/f; chmod 000 d/f; chmod 000 d")
    assert await run.read(await ws.snapshot(), b"d/f") == b"x\n"
    await ws.remove()


async def test_large_files_do_not_fill_memory(tmp_path: Path, repositories: LocalRepositories) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "head -c 30000000 /dev/zero > big; echo end >> big")
    tree = await ws.snapshot()
    assert (await run.read(tree, b"big") or b"")[-5:] == b"\0end\n"
    odd.git(run.git_dir, "fsck", "--strict", tree)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
async def test_many_new_files_are_one_pack(tmp_path: Path, repositories: LocalRepositories, object_format: str) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s", f"--object-format={object_format}"))
    ws = await workspace(run)
    in_sandbox(ws, "mkdir -p node_modules/a; for i in $(seq 400); do echo $i > node_modules/a/f$i; done; head -c 300000 /dev/urandom > r")
    tree = await ws.snapshot()
    assert len(list((run.git_dir / "objects/pack").glob("*.pack"))) == 1
    assert len(list((run.git_dir / "objects").glob("??/*"))) == 0
    assert await run.read(tree, b"node_modules/a/f400") == b"400\n"
    odd.git(run.git_dir, "fsck", "--strict", tree)
    in_sandbox(ws, "echo x > node_modules/a/f1")
    await ws.restore(tree)
    assert await ws.snapshot() == tree


async def test_a_snapshot_that_failed_is_made_whole_by_the_next(tmp_path: Path, repositories: LocalRepositories, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await opened(repositories, odd.plain(tmp_path / "s"))
    ws = await workspace(run)
    in_sandbox(ws, "echo precious > new; sleep 0.2")
    with monkeypatch.context() as patch:

        def full(self: Batch) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(Batch, "finish", full)
        with pytest.raises(GitFailed, match="No space"):
            await ws.snapshot()
    tree = await ws.snapshot()
    assert await run.read(tree, b"new") == b"precious\n"
    odd.git(run.git_dir, "fsck", "--strict", tree)


async def test_a_copy_is_treated_as_a_whole(tmp_path: Path) -> None:
    entry = LocalRepositories(tmp_path / "home", overlay=False)
    run = await opened(entry, odd.every_kind(tmp_path / "s"))
    ws = await workspace(run)
    assert ws.kind == "copy" and ws.mount.lower is None and ws.mount.work is None
    tree = await run.tree_of(run.info.head_sha)
    assert await ws.snapshot() == tree
    in_sandbox(ws, "rm -r src; mkfifo src; rm calc.py; echo x > new; git status --porcelain > /tmp/x")
    changed = await ws.snapshot()
    assert {(c.status, c.path) for c in await run.changes(tree, changed)} == {
        ("D", b"src/pkg/long.py"), ("D", b"src/pkg/run.sh"), ("D", b"calc.py"), ("A", b"new"),
    }
    assert await ws.specials() == [(b"src", "fifo")]
    await ws.restore(tree)
    assert await ws.snapshot() == tree and await ws.specials() == []
    entry.close()
