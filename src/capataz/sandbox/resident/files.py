"""File operations below one folder. Every path is walked by folder descriptors, one name at a time, links by hand.

A link is never followed by the kernel (``O_NOFOLLOW``), and ``..`` goes back to a descriptor that the walk itself holds;
so a link or folder that is swapped between check and use can make an operation fail, never leave the folder.
"""

# Pathlib takes longer to import than the helper has to start:
# ruff: noqa: PTH208
from __future__ import annotations

import errno
import os
import stat

from . import wire

TYPE_CHECKING = False                          # typing itself would cost more than the rest of the start
if TYPE_CHECKING:
    from collections.abc import Callable

_DIR = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
_MAX_DEPTH = 400
_RACES = 8
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_USAGE = {
    errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk is full", errno.EFBIG: "the file is over the size limit",
    errno.ENAMETOOLONG: "the name is too long", errno.EISDIR: "it is a folder", errno.ENOTDIR: "a parent is no folder",
    errno.ENOTEMPTY: "the folder is not empty", errno.EBUSY: "it is in use", errno.EINVAL: "the name cannot be used",
    errno.ENXIO: "it is no regular file", errno.ETXTBSY: "it is being executed", errno.EILSEQ: "the name cannot be used",
}


class Refused(Exception):
    """An operation that fails for a reason that the caller can mend; ``kind`` is one of wire's FAIL kinds."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class _Raced(Exception):
    """Somebody changed the path under the walk: try again."""


def show(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def translate(path: bytes, error: OSError) -> Refused:
    """The refusal that an ``OSError`` stands for."""
    number = error.errno or 0
    if number == errno.ENOENT:
        return Refused(wire.MISSING, f"{show(path)}: no such file or folder")
    if number in _FORBIDDEN:
        return Refused(wire.FORBIDDEN, f"{show(path)}: {os.strerror(number).lower()}")
    if number == errno.ELOOP:
        return Refused(wire.FORBIDDEN, f"{show(path)}: a link in the path changed or leads nowhere")
    return Refused(wire.USAGE, f"{show(path)}: {_USAGE.get(number, os.strerror(number).lower())}")


def _parts(path: bytes) -> list[bytes]:
    if b"\0" in path:
        raise Refused(wire.USAGE, "a path cannot hold a NUL byte")
    if path.startswith(b"/"):
        raise Refused(wire.FORBIDDEN, f"{show(path)}: paths are relative to the workspace")
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Refused(wire.FORBIDDEN, f"{show(path)}: '..' is not allowed")
    return parts


class _Walk:
    """The descriptors from the root to where the walk is. ``close`` closes all."""

    def __init__(self, root: int, path: bytes) -> None:
        self.path = path
        self.stack = [os.dup(root)]
        self.pending = _parts(path)[::-1]
        self.links = 0

    def close(self) -> None:
        while self.stack:
            os.close(self.stack.pop())

    def up(self) -> None:
        if len(self.stack) == 1:
            raise Refused(wire.FORBIDDEN, f"{show(self.path)}: a link leaves the workspace")
        os.close(self.stack.pop())

    def link(self, name: bytes) -> bool:
        """Puts a link's target in place of its name; False if the name is no link."""
        try:
            target = os.readlink(name, dir_fd=self.stack[-1])
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        self.links += 1
        if self.links > _MAX_LINKS:
            raise Refused(wire.FORBIDDEN, f"{show(self.path)}: too many links")
        if target.startswith(b"/"):
            raise Refused(wire.FORBIDDEN, f"{show(self.path)}: a link leaves the workspace")
        self.pending += [part for part in target.split(b"/") if part not in (b"", b".")][::-1]
        return True

    def enter(self, name: bytes, make: bool) -> None:
        try:
            self.stack.append(os.open(name, _DIR, dir_fd=self.stack[-1]))
        except FileNotFoundError:
            if not make:
                raise
            try:
                os.mkdir(name, 0o755, dir_fd=self.stack[-1])
            except FileExistsError:
                if not self.link(name):
                    raise _Raced from None
                return
            self.stack.append(os.open(name, _DIR, dir_fd=self.stack[-1]))
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if not self.link(name):
                raise Refused(wire.USAGE, f"{show(self.path)}: a parent is no folder") from None


def _walk(root: int, path: bytes, follow: bool, make: bool) -> tuple[_Walk, bytes]:
    """The walk to the folder that holds the last name, and that name (``.``: the folder itself). The caller closes it."""
    walk = _Walk(root, path)
    try:
        while walk.pending:
            name = walk.pending.pop()
            if name == b"..":
                walk.up()
            elif walk.pending:
                walk.enter(name, make)
            elif follow and _is_link(name, walk.stack[-1]):
                if not walk.link(name):
                    raise _Raced
            else:
                return walk, name
        return walk, b"."
    except BaseException:
        walk.close()
        raise


def _is_link(name: bytes, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _at(root: int, path: bytes, action: Callable[[int, bytes], object], follow: bool = True, make: bool = False) -> object:
    """Does ``action(folder, name)`` at the end of a walk; again when somebody changed the path meanwhile."""
    for _ in range(_RACES):
        try:
            walk, name = _walk(root, path, follow, make)
            try:
                return action(walk.stack[-1], name)
            finally:
                walk.close()
        except _Raced:
            continue
        except OSError as error:
            if error.errno == errno.ELOOP:         # the last name became a link after it was looked at
                continue
            raise translate(path, error) from None
    raise Refused(wire.FORBIDDEN, f"{show(path)}: the path changes while it is used")


def _kind(mode: int) -> bytes:
    if stat.S_ISREG(mode):
        return b"f"
    if stat.S_ISDIR(mode):
        return b"d"
    return b"l" if stat.S_ISLNK(mode) else b"o"


def stat_file(root: int, path: bytes) -> tuple[bytes, int, int]:
    """Kind, size and mode of the name itself (links are not followed); kind ``m`` when it is missing."""

    def look(folder: int, name: bytes) -> tuple[bytes, int, int]:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return _kind(found.st_mode), found.st_size, stat.S_IMODE(found.st_mode)

    try:
        return _at(root, path, look, follow=False)  # type: ignore[return-value]
    except Refused as refused:
        if refused.kind == wire.MISSING:
            return b"m", 0, 0
        raise


def read_file(root: int, path: bytes, offset: int, limit: int) -> tuple[bytes, int]:
    """At most ``limit`` bytes from ``offset``, and the file's size."""

    def read(folder: int, name: bytes) -> tuple[bytes, int]:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                what = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
                raise Refused(wire.USAGE, f"{show(path)}: it is {what}")
            return _read_all(fd, offset, min(limit, max(0, found.st_size - offset))), found.st_size
        finally:
            os.close(fd)

    return _at(root, path, read)  # type: ignore[return-value]


def _read_all(fd: int, offset: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, min(size, 1 << 20), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def write_file(root: int, path: bytes, data: bytes, mode: int) -> None:
    """Replaces the file as one step; ``mode`` -1 keeps what it had (0644 when new). A link is written through."""

    def write(folder: int, name: bytes) -> None:
        if name == b".":
            raise Refused(wire.USAGE, f"{show(path)}: it is a folder")
        wanted = _mode_for(folder, name, path, mode)
        temporary = b".capataz-" + os.urandom(8).hex().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            try:
                _write_all(fd, data)
                os.fchmod(fd, wanted)
            finally:
                os.close(fd)
            if _is_link(name, folder):
                raise _Raced
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise

    _at(root, path, write, make=True)


def _mode_for(folder: int, name: bytes, path: bytes, mode: int) -> int:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644 if mode < 0 else mode & 0o777
    if stat.S_ISLNK(found.st_mode):
        raise _Raced
    if not stat.S_ISREG(found.st_mode):
        raise Refused(wire.USAGE, f"{show(path)}: it is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no regular file'}")
    # rename() asks the folder only: a file that its owner made read-only, or that is masked, would be replaced all the same
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, "read-only")
    return found.st_mode & 0o777 if mode < 0 else mode & 0o777


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def list_folder(root: int, path: bytes, depth: int, limit: int) -> list[tuple[bytes, bytes, int]]:
    """(path below the folder, kind, size), sorted; the upper levels first when ``limit`` cuts. Links are not entered."""

    def walk(folder: int, name: bytes) -> list[tuple[bytes, bytes, int]]:
        found: list[tuple[bytes, bytes, int]] = []
        top = os.open(name, _LIST, dir_fd=folder)
        level = [b""]
        try:
            for _ in range(max(1, min(depth, _MAX_DEPTH))):
                level = [sub for parent in level for sub in _list_one(top, parent, limit, found)]
        finally:
            os.close(top)
        return sorted(found)

    return _at(root, path, walk)  # type: ignore[return-value]


def _list_one(top: int, parent: bytes, limit: int, found: list[tuple[bytes, bytes, int]]) -> list[bytes]:
    """Adds one folder's entries; gives its sub-folders. A folder that cannot be read (any longer) has no entries."""
    if len(found) >= limit:
        return []
    try:
        fd = _open_below(top, parent)
    except OSError:
        return []
    try:
        entries = sorted((os.fsencode(e.name), e) for e in os.scandir(fd))
        folders: list[bytes] = []
        for name, entry in entries[: limit - len(found)]:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path = parent + b"/" + name if parent else name
            found.append((path, _kind(info.st_mode), info.st_size))
            if stat.S_ISDIR(info.st_mode):
                folders.append(path)
        return folders
    finally:
        os.close(fd)


def _open_below(top: int, path: bytes) -> int:
    fd = os.open(b".", _LIST, dir_fd=top)
    for name in path.split(b"/") if path else []:
        try:
            below = os.open(name, _LIST, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def remove(root: int, path: bytes) -> None:
    """Removes a file, a link (not its target) or a folder with all that it holds."""

    def drop(folder: int, name: bytes) -> None:
        if name == b".":
            raise Refused(wire.FORBIDDEN, "the workspace itself cannot be removed")
        _drop(folder, name, 0, path)

    _at(root, path, drop, follow=False)


def _drop(folder: int, name: bytes, depth: int, path: bytes) -> None:
    if depth > _MAX_DEPTH:
        raise Refused(wire.USAGE, f"{show(path)}: the folder is nested too deeply")
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    fd = os.open(name, _LIST, dir_fd=folder)
    try:
        for entry in os.listdir(fd):
            _drop(fd, os.fsencode(entry), depth + 1, path)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)
