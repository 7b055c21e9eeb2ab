"""Flat listings and differences of trees, as git gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from capataz.contracts.workspace import Change, TreeEntry
from capataz.workspace.git import Git


@dataclass(frozen=True, slots=True)
class SizedEntry:
    mode: str
    sha: str
    size: int                                  # bytes; 0 for a gitlink
    path: bytes


def entries(git: Git, tree: str) -> list[TreeEntry]:
    """All blobs, links and gitlinks below ``tree``."""
    result: list[TreeEntry] = []
    for line in _lines(git.out("ls-tree", "-r", "-z", "--full-tree", tree)):
        meta, _, path = line.partition(b"\t")
        mode, _, sha = meta.decode("ascii").split(" ")
        result.append(TreeEntry(mode, sha, path))
    return result


def sized_entries(git: Git, tree: str) -> list[SizedEntry]:
    result: list[SizedEntry] = []
    for line in _lines(git.out("ls-tree", "-r", "-z", "-l", "--full-tree", tree)):
        meta, _, path = line.partition(b"\t")
        mode, _, sha, size = meta.decode("ascii").split()
        result.append(SizedEntry(mode, sha, int(size) if size.isdigit() else 0, path))
    return result


def changes(git: Git, old_tree: str, new_tree: str) -> list[Change]:
    """Differences path by path; a rename is an A and a D."""
    if old_tree == new_tree:
        return []
    fields = _lines(git.out("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--full-index", old_tree, new_tree))
    result: list[Change] = []
    for meta, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_sha, new_sha, status = meta.decode("ascii").lstrip(":").split(" ")
        kind = cast(Literal["A", "M", "D", "T"], status[0])
        result.append(Change(kind, path, old_mode, new_mode, old_sha, new_sha))
    return result


def diff(git: Git, old_tree: str, new_tree: str, *, binary: bool = True) -> bytes:
    """The patch text. ``binary``: whole binary patches (it applies); otherwise a binary change is named with both SHAs."""
    if old_tree == new_tree:
        return b""
    options = ["-r", "-p", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--submodule=short",
               "--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--no-indent-heuristic", "-U3"]
    if binary:
        options.append("--binary")
    return git.out("diff-tree", *options, old_tree, new_tree)


def _lines(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]
