"""Symbolic links of a tree: does one leave it? Decided on the tree's own entries; no link is ever followed on disk."""

from __future__ import annotations

from collections.abc import Mapping

from capataz.evidence.reserved import is_reserved_name

_MAX_LINKS = 40


def escapes(links: Mapping[bytes, bytes], path: bytes) -> bool:
    """Whether resolving the link at ``path`` can leave the tree (or reach the root's ``.git``).

    ``links``: every link of the tree with its target. Folders that are links are followed as the kernel would, so that
    ``d/..`` is not taken for the folder of ``d``. A chain that is too long or turns in a circle leads nowhere: no escape.
    """
    todo = path.split(b"/")[::-1]
    at: list[bytes] = []
    followed = 0
    while todo:
        part = todo.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not at:
                return True
            at.pop()
            continue
        at.append(part)
        target = links.get(b"/".join(at))
        if target is not None:
            followed += 1
            if target.startswith(b"/"):
                return True
            if followed > _MAX_LINKS:
                return False
            at.pop()
            todo += target.split(b"/")[::-1]
        elif len(at) == 1 and is_reserved_name(part):
            return True
    return False


def new_escapes(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> list[bytes]:
    """Links of ``after`` that leave the tree and are new, changed, or did not leave it in ``before``."""
    return sorted(
        path
        for path, target in after.items()
        if escapes(after, path) and (before.get(path) != target or not escapes(before, path))
    )
