"""Names that some file system takes for ``.git``: other case, Unicode forms, ignorable characters, NTFS short names."""

from __future__ import annotations

import unicodedata

# Code points that HFS+ ignores in names (git's own list, utf8.c: next_hfs_char).
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])


def is_reserved_name(name: bytes) -> bool:
    """Whether one part of a path is ``.git`` on some file system."""
    text = unicodedata.normalize("NFKC", name.decode("utf-8", "surrogateescape").translate(_IGNORED)).casefold()
    text = text.split(":", 1)[0].rstrip(". ")
    return text in {".git", "git~1"}


def reserved_paths(paths: list[bytes]) -> list[bytes]:
    """Paths with such a part. The root's own ``.git`` is no part of a tree and so never among them."""
    return [p for p in paths if any(_could_be(part) and is_reserved_name(part) for part in p.split(b"/"))]


def _could_be(part: bytes) -> bool:
    """A cheap look first: only short names, or names that are not ASCII, need the slow one."""
    return len(part) <= 5 or not part.isascii() or part[:4].lower() in (b".git", b"git~")
