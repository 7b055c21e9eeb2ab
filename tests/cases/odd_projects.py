"""Odd but legal repositories as projects that a job can be done on: a passing suite, a policy, plus one oddity each."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from odd_repositories import ENV, ODD_NAMES, commit, git, init, write

POLICY = b'[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\nrequired = true\n'
SELFCHECK = (
    b"import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
)
FLAT_NAMES = [name for name in ODD_NAMES if b"/" not in name]


def base(repo: Path) -> Path:
    init(repo)
    write(repo, "calc.py", b"def add(a, b):\n    return a + b\n")
    write(repo, "capataz.toml", POLICY)
    write(repo, "selfcheck.py", SELFCHECK)
    return repo


def plain(repo: Path) -> Path:
    commit(base(repo))
    return repo


def odd_names(repo: Path) -> Path:
    base(repo)
    for name in ODD_NAMES:
        write(repo, name, b"x\n")
    commit(repo)
    return repo


def crlf(repo: Path) -> Path:
    base(repo)
    write(repo, "dos.txt", b"one\r\ntwo\r\nthree\r\n")
    write(repo, "mixed.txt", b"one\r\ntwo\nthree")
    commit(repo)
    return repo


def non_utf8(repo: Path) -> Path:
    base(repo)
    write(repo, "latin.txt", b"caf\xe9\nplain\n")
    write(repo, "utf16.txt", "hola\n".encode("utf-16"))
    commit(repo)
    return repo


def binary(repo: Path) -> Path:
    base(repo)
    write(repo, "blob.bin", bytes(range(256)) * 4096)
    write(repo, "run.sh", b"#!/bin/sh\nexit 0\n", 0o755)
    commit(repo)
    return repo


def symlinks(repo: Path) -> Path:
    base(repo)
    for name, target in {"inside": "calc.py", "dangling": "nowhere", "outside": "/etc/hostname", "up": "../.."}.items():
        (repo / name).symlink_to(target)
    commit(repo)
    return repo


def submodule(repo: Path) -> Path:
    inner = plain(repo.with_name(f"{repo.name}-inner"))
    plain(repo)
    git(repo, "submodule", "add", "-q", str(inner), "vendor/inner")
    commit(repo, "submodule")
    return repo


def shallow(repo: Path) -> Path:
    full = plain(repo.with_name(f"{repo.name}-full"))
    for n in range(3):
        write(full, "n.txt", b"%d" % n)
        commit(full, f"c{n}")
    subprocess.run(["git", "clone", "-q", "--depth", "1", full.as_uri(), str(repo)], env=ENV, check=True, capture_output=True)
    return repo


def detached(repo: Path) -> Path:
    plain(repo)
    git(repo, "checkout", "-q", "--detach")
    return repo


def dirty(repo: Path) -> Path:
    plain(repo)
    write(repo, "calc.py", b"# local edit\ndef add(a, b):\n    return a + b\n")
    write(repo, "untracked.txt", b"mine\n")
    return repo


def hostile_config(repo: Path) -> Path:
    """``marker(repo)`` exists once anything of it was executed."""
    base(repo)
    write(repo, ".gitattributes", b"* filter=evil diff=evil merge=evil\n")
    commit(repo)
    mark = marker(repo)
    keys = ["core.fsmonitor", "core.sshCommand", "core.pager", "diff.external", "filter.evil.clean", "filter.evil.smudge",
            "filter.evil.process", "diff.evil.textconv", "merge.evil.driver", "credential.helper", "core.alternateRefsCommand",
            "gpg.program", "uploadpack.packObjectsHook"]
    for key in keys:
        git(repo, "config", key, f"touch '{mark}'; cat")
    git(repo, "config", "core.hooksPath", ".git/hooks")
    hooks = repo / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ["pre-commit", "post-checkout", "post-merge", "reference-transaction", "post-index-change", "pre-push", "update",
                 "post-update", "pre-auto-gc"]:
        write(hooks, hook, f"#!/bin/sh\ntouch '{mark}'\n".encode(), 0o755)
    mark.unlink(missing_ok=True)
    return repo


def marker(repo: Path) -> Path:
    return repo.with_name(f"{repo.name}-executed")


def case_only(repo: Path) -> Path:
    base(repo)
    write(repo, "Readme.md", b"a\n")
    write(repo, "README.md", b"b\n")
    commit(repo)
    return repo


def lfs_pointer(repo: Path) -> Path:
    base(repo)
    write(repo, ".gitattributes", b"*.big filter=lfs diff=lfs merge=lfs -text\n")
    write(repo, "model.big", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n")
    commit(repo)
    return repo


def nested_repo(repo: Path) -> Path:
    plain(repo)
    plain(repo / "scratch")
    return repo


def rename_and_edit(repo: Path) -> Path:
    base(repo)
    write(repo, "pkg/long.py", "\n".join(f"def f{i}():\n    return {i}\n" for i in range(60)).encode())
    commit(repo)
    return repo


def many_files(repo: Path) -> Path:
    base(repo)
    for d in range(200):
        for f in range(100):
            write(repo, f"d{d:03}/f{f:03}.txt", b"%d %d\n" % (d, f) * 20)
    commit(repo)
    return repo


def spaces_and_signs(repo: Path) -> Path:
    return plain(repo.with_name("caf\u00e9 \u7a7a 'x' $HOME"))


def bare(repo: Path) -> Path:
    source = plain(repo.with_name(f"{repo.name}-source"))
    subprocess.run(["git", "clone", "-q", "--bare", str(source), str(repo)], env=ENV, check=True, capture_output=True)
    return repo


def linked_worktree(repo: Path) -> Path:
    main = plain(repo.with_name(f"{repo.name}-main"))
    git(main, "worktree", "add", "-q", "-b", "side", str(repo))
    return repo


def alternates(repo: Path) -> Path:
    source = plain(repo.with_name(f"{repo.name}-source"))
    subprocess.run(["git", "clone", "-q", "--shared", str(source), str(repo)], env=ENV, check=True, capture_output=True)
    return repo


def sha256_objects(repo: Path) -> Path:
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "main", "--object-format=sha256")
    write(repo, "calc.py", b"def add(a, b):\n    return a + b\n")
    write(repo, "capataz.toml", POLICY)
    write(repo, "selfcheck.py", SELFCHECK)
    commit(repo)
    return repo


PROJECTS: dict[str, Callable[[Path], Path]] = {
    f.__name__: f
    for f in (
        plain, odd_names, crlf, non_utf8, binary, symlinks, submodule, shallow, detached, dirty, hostile_config, case_only,
        lfs_pointer, nested_repo, rename_and_edit, spaces_and_signs, bare, linked_worktree, alternates, sha256_objects,
    )
}
