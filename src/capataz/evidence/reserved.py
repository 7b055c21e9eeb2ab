"""Names that some file system takes for ``.git``: other case, Unicode forms, ignorable characters, NTFS short names."""

from __future__ import annotations

import unicodedata


def is_reserved_name(name: bytes) -> bool:
    """Whether one part of a path (or a part of it, where a backslash separates) is ``.git`` on some file system."""
    return any(_is_dot_git(part.decode("utf-8", "surrogateescape")) for part in name.split(b"\\"))


def _is_dot_git(text: str) -> bool:
    """HFS+ ignores format characters in names, NTFS trailing dots and blanks and what follows a colon."""
    bare = "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Mn"))
    folded = unicodedata.normalize("NFKC", bare).casefold()
    return folded.split(":", 1)[0].rstrip(". ") in {".git", "git~1"}


def reserved_paths(paths: list[bytes]) -> list[bytes]:
    """Paths with such a part. The root's own ``.git`` is no part of a tree and so never among them."""
    return [p for p in paths if _could_be(p) and any(is_reserved_name(part) for part in p.split(b"/"))]


def _could_be(path: bytes) -> bool:
    """A cheap look first: ASCII paths need the slow one only when they hold the word."""
    return not path.isascii() or b"git" in path.lower()
