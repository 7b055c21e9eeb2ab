"""Looking at a source repository: found by reading files, asked by git only about refs, never written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capataz.contracts.errors import RepositoryUnusable
from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace.git import Git, check_version

_MAX_ALTERNATES = 64


@dataclass(frozen=True, slots=True)
class _Found:
    git_dir: Path
    work_tree: Path | None


def source_git(info: RepositoryInfo) -> Git:
    """Git in the source's own GIT_DIR: for reading refs and the one ``update-ref`` only."""
    return Git(info.git_dir)


def inspect(path: str | Path) -> RepositoryInfo:
    """Raises ``RepositoryUnusable``: no repository, no commit yet, a git that is too old, a folder nobody may read."""
    check_version()
    named = Path(path)
    found = _find(named)
    common = _common_dir(found.git_dir)
    git = Git(found.git_dir)
    object_format = _object_format(git)
    head_ref = _head_ref(git, named)
    head_sha = _head_sha(git, named, head_ref)
    return RepositoryInfo(
        path=found.work_tree or found.git_dir,
        git_dir=found.git_dir,
        common_dir=common,
        work_tree=found.work_tree,
        head_ref=head_ref,
        head_sha=head_sha,
        shallow=_has_content(common / "shallow"),
        object_format=object_format,
    )


def _find(named: Path) -> _Found:
    if "\0" in str(named):
        raise RepositoryUnusable("a path cannot hold a NUL byte")
    try:
        start = named.resolve(strict=True)
    except FileNotFoundError:
        raise RepositoryUnusable(f"{named}: no such folder") from None
    except (OSError, RuntimeError) as error:
        raise RepositoryUnusable(f"{named}: cannot be read: {error}") from None
    if not start.is_dir():
        raise RepositoryUnusable(f"{named}: not a folder, thus no git repository")
    try:
        return _search(start, named)
    except PermissionError as error:
        raise RepositoryUnusable(f"{named}: this user may not read {error.filename}") from None


def _search(start: Path, named: Path) -> _Found:
    if start.name == ".git" and _is_git_dir(start):
        bare = _config(start / "config", "core.bare") == "true"
        return _Found(start, None if bare else start.parent)
    for folder in (start, *start.parents):
        dot_git = folder / ".git"
        if dot_git.is_file():
            return _Found(_linked(dot_git), folder)
        if dot_git.is_dir() and _is_git_dir(dot_git):
            return _Found(dot_git.resolve(), folder)
        if _is_git_dir(folder):
            return _bare(folder, named)
    raise RepositoryUnusable(f"{named}: not a git repository (nor is any folder above it)")


def _bare(folder: Path, named: Path) -> _Found:
    if (folder / "commondir").exists() or _config(folder / "config", "core.bare") == "false":
        raise RepositoryUnusable(f"{named}: this is the inside of a repository; name its working folder instead")
    return _Found(folder, None)


def _linked(dot_git: Path) -> Path:
    text = os.fsdecode(dot_git.read_bytes()).rstrip("\r\n")
    if not text.startswith("gitdir: "):
        raise RepositoryUnusable(f"{dot_git}: not a git file")
    target = (dot_git.parent / text.removeprefix("gitdir: ")).resolve()
    if not _is_git_dir(target):
        raise RepositoryUnusable(f"{dot_git}: names {target}, which is no git repository (moved or removed?)")
    return target


def _is_git_dir(folder: Path) -> bool:
    """What git itself asks: HEAD, and objects and refs here or in the common folder."""
    if not os.path.lexists(folder / "HEAD"):
        return False
    common = folder if not (folder / "commondir").is_file() else _common_dir(folder)
    return (common / "objects").is_dir() and (common / "refs").is_dir()


def _common_dir(git_dir: Path) -> Path:
    try:
        text = os.fsdecode((git_dir / "commondir").read_bytes()).rstrip("\r\n")
    except (FileNotFoundError, NotADirectoryError):
        return git_dir
    common = (git_dir / text).resolve()
    if not common.is_dir():
        raise RepositoryUnusable(f"{git_dir}: belongs to {common}, which is gone")
    return common


def _config(file: Path, key: str) -> str | None:
    """One value of a configuration file, includes not followed; None: not set."""
    if not file.is_file():
        return None
    result = Git(file.parent).run("config", "--file", str(file), "--no-includes", "--get", key)
    return result.stdout.decode("utf-8", "replace").strip() if result.code == 0 else None


def config_value(info: RepositoryInfo, key: str) -> str | None:
    """One value of the source's own configuration."""
    return _config(info.common_dir / "config", key)


def _object_format(git: Git) -> Literal["sha1", "sha256"]:
    result = git.run("rev-parse", "--show-object-format")
    if result.code != 0:
        raise RepositoryUnusable(f"{git.git_dir}: git cannot use this repository: {result.words()}")
    return "sha256" if result.stdout.strip() == b"sha256" else "sha1"


def _head_ref(git: Git, named: Path) -> str | None:
    """The branch that HEAD names. A HEAD that names a tag or a remote's branch stands on no branch: nothing is promoted there."""
    result = git.run("symbolic-ref", "-q", "HEAD")
    if result.code == 0:
        ref = os.fsdecode(result.stdout.rstrip(b"\n"))
        return ref if ref.startswith("refs/heads/") else None
    if result.code == 1:
        return None
    raise RepositoryUnusable(f"{named}: HEAD cannot be read: {result.words()}")


def _head_sha(git: Git, named: Path, head_ref: str | None) -> str:
    result = git.run("rev-parse", "--verify", "-q", "--end-of-options", "HEAD^{commit}")
    if result.code == 0:
        return result.stdout.decode("ascii").strip()
    if head_ref is not None and _ref(git, head_ref) is None:
        branch = head_ref.removeprefix("refs/heads/")
        raise RepositoryUnusable(f"{named}: no commit yet on {branch}; make a first commit, or check out a branch that has one")
    raise RepositoryUnusable(f"{named}: HEAD names a commit that is missing or damaged; run git fsck")


def resolve(info: RepositoryInfo, rev: str) -> str:
    """The commit that ``rev`` names in the source."""
    if not rev or re.search(r"[\0\n]", rev):
        raise RepositoryUnusable(f"{rev!r} is no revision")
    result = source_git(info).run("rev-parse", "--verify", "-q", "--end-of-options", f"{rev}^{{commit}}")
    if result.code != 0:
        raise RepositoryUnusable(f"{info.path}: no commit is named {rev!r}")
    return result.stdout.decode("ascii").strip()


def ref(info: RepositoryInfo, name: str) -> str | None:
    """What a full ref name holds; None: there is none."""
    return _ref(source_git(info), name)


def _ref(git: Git, name: str) -> str | None:
    # Not show-ref, which denies refs whose object is missing, nor rev-parse, which guesses at other names.
    result = git.run("for-each-ref", "--format=%(objectname) %(refname)", name)
    if result.code != 0:
        raise RepositoryUnusable(f"{git.git_dir}: {name} cannot be read: {result.words()}")
    for line in result.stdout.splitlines():
        sha, _, found = line.partition(b" ")
        if found == os.fsencode(name):
            return sha.decode("ascii")
    return None


def object_folders(common_dir: Path) -> list[Path]:
    """The source's object folder and, flattened, the alternates it borrows from, each once; missing ones are left out."""
    found: list[Path] = []
    queue = [common_dir / "objects"]
    while queue and len(found) < _MAX_ALTERNATES:
        folder = queue.pop(0).resolve()
        if folder in found or not folder.is_dir():
            continue
        found.append(folder)
        queue += [folder / line for line in _alternates(folder / "info" / "alternates")]
    return found


def _alternates(file: Path) -> list[str]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return []
    return [_unquoted(line) for line in lines if line and not line.startswith(b"#")]


def _unquoted(line: bytes) -> str:
    if not line.startswith(b'"'):
        return os.fsdecode(line)
    simple = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

    def one(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes([int(escape, 8)]) if escape.isdigit() else simple.get(escape, escape)

    return os.fsdecode(re.sub(rb"\\([0-7]{3}|.)", one, line[1:].rstrip(b'"'), flags=re.DOTALL))


def quoted_alternate(folder: str | Path) -> bytes:
    """A line of ``objects/info/alternates``: git reads a leading quote as C quoting."""
    raw = os.fsencode(folder)
    if not (raw.startswith((b'"', b"#")) or b"\n" in raw):
        return raw
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _has_content(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False
