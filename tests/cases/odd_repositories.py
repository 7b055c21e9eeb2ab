"""Builders of odd but legal git repositories. Every name and byte is made here; nothing odd is stored in this project."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}
ODD_NAMES = [
    b"with space.txt", b'quote".txt', b"new\nline.txt", b"tab\t.txt", "caf\u00e9-\u7a7a.txt".encode(), b"-leading-dash.txt",
    b"latin-\xe9.txt", b"back\\slash.txt", b"*.glob", b":(top)magic.txt", b"$(touch pwned).txt", b"dir with space/in\xff\n/x",
]


def git(repo: Path, *args: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", "-c", "safe.directory=*", *args], cwd=repo, env=ENV, input=stdin, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(repo: Path, name: bytes | str, data: bytes, mode: int = 0o644) -> None:
    path = repo / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def init(repo: Path, *options: str) -> Path:
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "main", *options)
    return repo


def commit(repo: Path, message: str = "base") -> str:
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", message)
    return git(repo, "rev-parse", "HEAD").decode().strip()


def plain(repo: Path, *options: str) -> Path:
    init(repo, *options)
    write(repo, "calc.py", b"def add(a, b):\n    return a + b\n")
    write(repo, "src/pkg/long.py", b"".join(b"line %d\n" % n for n in range(60)))
    write(repo, "src/pkg/run.sh", b"#!/bin/sh\nexit 0\n", 0o755)
    write(repo, ".gitignore", b"*.log\nbuild/\n")
    commit(repo)
    return repo


def odd_names(repo: Path) -> Path:
    init(repo)
    for name in ODD_NAMES:
        write(repo, name, b"x\n")
    commit(repo)
    return repo


def every_kind(repo: Path, *, attributes: bool = True) -> Path:
    """Links, modes, binary, line ends, case-only names, an empty file, and attributes that would change bytes."""
    plain(repo)
    write(repo, "blob.bin", bytes(range(256)) * 64)
    write(repo, "dos.txt", b"one\r\ntwo\r\n")
    write(repo, "mixed.txt", b"one\r\ntwo\n$Id$")
    write(repo, "Readme.md", b"a\n")
    write(repo, "README.md", b"b\n")
    write(repo, "empty", b"")
    write(repo, "utf16.txt", "hola\n".encode("utf-16"))
    (repo / "inside").symlink_to("calc.py")
    (repo / "dangling").symlink_to("nowhere")
    (repo / "outside").symlink_to("/etc/hostname")
    (repo / "linkdir").symlink_to("src")
    # Added before the attributes exist, so that the blobs hold these very bytes.
    commit(repo)
    if not attributes:
        return repo
    write(repo, ".gitattributes", b"*.txt text eol=crlf ident\n*.py text eol=crlf\nutf16.txt working-tree-encoding=UTF-16\n")
    git(repo, "add", ".gitattributes")
    git(repo, "commit", "-q", "-m", "attributes")
    return repo


def hostile(repo: Path) -> tuple[Path, Path]:
    """(repository, file that exists once anything of it was executed)."""
    plain(repo)
    write(repo, ".gitattributes", b"* filter=evil diff=evil merge=evil\n")
    commit(repo, "attributes")
    mark = repo.parent / f"{repo.name}-executed"
    for key in [
        "core.fsmonitor", "core.sshCommand", "core.pager", "diff.external", "filter.evil.clean", "filter.evil.smudge",
        "filter.evil.process", "diff.evil.textconv", "diff.evil.command", "merge.evil.driver", "credential.helper",
        "core.alternateRefsCommand", "gpg.program", "uploadpack.packObjectsHook",
    ]:
        git(repo, "config", key, f"touch '{mark}'; cat")
    git(repo, "config", "filter.evil.required", "true")
    git(repo, "config", "core.hooksPath", ".git/hooks")
    hooks = repo / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for hook in [
        "pre-commit", "post-checkout", "post-merge", "reference-transaction", "post-index-change", "pre-push", "update",
        "post-update", "pre-receive", "pre-auto-gc", "fsmonitor-watchman",
    ]:
        write(hooks, hook, f"#!/bin/sh\ntouch '{mark}'\n".encode(), 0o755)
    mark.unlink(missing_ok=True)
    return repo, mark


def with_submodule(repo: Path) -> Path:
    inner = plain(repo.parent / f"{repo.name}-inner")
    plain(repo)
    git(repo, "submodule", "add", "-q", str(inner), "vendor/inner")
    commit(repo, "submodule")
    return repo


def shallow(repo: Path) -> Path:
    full = plain(repo.parent / f"{repo.name}-full")
    for n in range(3):
        write(full, "n.txt", b"%d" % n)
        commit(full, f"c{n}")
    subprocess.run(["git", "clone", "-q", "--depth", "1", full.as_uri(), str(repo)], env=ENV, check=True, capture_output=True)
    return repo


def state(repo: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder of a repository with mode, time and content, to see that nothing was written."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for folder, folders, files in os.walk(os.fsencode(repo)):
        here = Path(os.fsdecode(folder))
        for path in [here, *(here / os.fsdecode(n) for n in files), *(p for f in folders if (p := here / os.fsdecode(f)).is_symlink())]:
            st = path.lstat()
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[repr(path)] = (st.st_mode, st.st_mtime_ns, data)
    return found
