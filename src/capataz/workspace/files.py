"""File operations that never follow a link of a hostile folder: every component is opened by itself, from its parent."""

# ruff: noqa: PTH101, PTH123, PTH208  -- works on descriptors and bytes, for which pathlib has no words
from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(name: bytes | Path, *, at: int | None = None) -> int:
    """A folder's descriptor; a folder of ours that lacks permissions gets them."""
    try:
        return os.open(name, DIRECTORY, dir_fd=at)
    except PermissionError:
        _grant(name, at, 0o700)
        return os.open(name, DIRECTORY, dir_fd=at)


def open_file(name: bytes, *, at: int) -> int:
    """A regular file for reading; one that nobody may read is granted for the moment, and only for its own inode."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=at)
    except PermissionError:
        before = _grant(name, at, 0o400)
        fd = os.open(name, flags, dir_fd=at)
        os.fchmod(fd, before)
        return fd


def _grant(name: bytes | Path, at: int | None, bits: int) -> int:
    """Adds mode bits through an O_PATH descriptor (a link swapped in meanwhile is not followed); gives the mode before."""
    fd = os.open(name, _PATH_ONLY, dir_fd=at)
    try:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise PermissionError(f"{name!r} is neither file nor folder")
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | bits)
        return stat.S_IMODE(mode)
    finally:
        os.close(fd)


@contextlib.contextmanager
def directory(name: bytes | Path, *, at: int | None = None) -> Iterator[int]:
    fd = open_directory(name, at=at)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def parent_of(root: int, path: bytes, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
    """(descriptor of the parent folder, last name), reached without following a link.

    Raises ``FileNotFoundError`` or ``NotADirectoryError`` (a link in the way gives the latter, too).
    """
    *parents, name = path.split(b"/")
    fd = os.dup(root)
    try:
        for part in parents:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=fd)
            below = open_directory(part, at=fd)
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


def remove_entry(name: bytes, *, at: int) -> None:
    """Removes whatever stands there, folders whole; nothing there is fine."""
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        with directory(name, at=at) as fd:
            _empty(fd)
        os.rmdir(name, dir_fd=at)


def empty_directory(fd: int) -> None:
    """Removes everything in an open folder, however deep, with a bounded number of descriptors."""
    _empty(fd)


def _empty(fd: int) -> None:
    # Folders are flattened: every sub-folder is moved up beside its parent before it is emptied, so that neither
    # recursion nor descriptors nor path length grow with the depth a hostile process chose.
    if stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    queue = [os.fsencode(e) for e in os.listdir(fd)]
    while queue:
        name = queue.pop()
        try:
            os.unlink(name, dir_fd=fd)
            continue
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError):
            pass
        with directory(name, at=fd) as sub:
            os.fchmod(sub, 0o700)
            for child in os.listdir(sub):
                raw = os.fsencode(child)
                try:
                    os.unlink(raw, dir_fd=sub)
                except (IsADirectoryError, PermissionError):
                    queue.append(_move_up(raw, sub, fd))
        os.rmdir(name, dir_fd=fd)


def _move_up(name: bytes, source: int, target: int) -> bytes:
    new = b".rm-" + uuid.uuid4().hex.encode()
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:                        # moving a folder writes its "..": it must be writable itself
        _grant(name, source, 0o700)
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    return new


def remove_folder(folder: Path) -> None:
    """Removes a folder of ours with everything in it; a missing one is fine. A crash leaves a part, removed by the next call."""
    try:
        with directory(folder.parent) as fd:
            remove_entry(os.fsencode(folder.name), at=fd)
    except FileNotFoundError:
        pass


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """A file that appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as out:
            out.write(data)
            if sync:
                out.flush()
                os.fsync(fd)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
