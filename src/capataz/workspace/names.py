"""Names that git, or a file system that git knows, could take for ``.git``; and safe folder names for ids."""

from __future__ import annotations

import hashlib
import unicodedata
from urllib.parse import quote

from capataz.contracts.errors import UsageError

_IGNORED = {"\u034f", *map(chr, range(0xFE00, 0xFE10))}    # ignorable, though not of the category "format"


def is_reserved(name: bytes) -> bool:
    """Whether a path component is ``.git`` in some case or Unicode form, or what NTFS and HFS+ take for it."""
    return any(_is_dot_git(part) for part in name.split(b"\\"))


def _is_dot_git(part: bytes) -> bool:
    part = part.split(b":")[0]
    if part.rstrip(b" .").lower() in (b".git", b"git~1"):
        return True
    if part.isascii():
        return False
    text = part.decode("utf-8", "ignore")
    text = "".join(c for c in text if unicodedata.category(c) != "Cf" and c not in _IGNORED)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded.split(":")[0].rstrip(" .") in (".git", "git~1")


def folder_name(identifier: str) -> str:
    """An id as one path component; distinct ids give distinct names."""
    if not identifier or "\0" in identifier:
        raise UsageError(f"{identifier!r} is no usable id")
    name = quote(identifier, safe="-_.@+=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > 120:
        name = name[:80] + "%" + hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return name


def shown(path: bytes) -> str:
    """A path for a message: bytes that are no UTF-8 as escapes."""
    return path.decode("utf-8", "backslashreplace").replace("\n", "\\n")
