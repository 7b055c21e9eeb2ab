"""Writing the files of a tree into a folder: exact bytes, no filters, no attributes, no line-end changes, links as links."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from capataz.contracts.errors import GitFailed, RepositoryUnusable
from capataz.workspace.files import open_directory
from capataz.workspace.git import Git
from capataz.workspace.listing import SizedEntry
from capataz.workspace.names import shown
from capataz.workspace.objects import copy_to

GITLINK, LINK, EXECUTABLE = "160000", "120000", "100755"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def materialise(git: Git, listing: list[SizedEntry], root: int, *, mtime: int | None, written: Callable[[SizedEntry, os.stat_result], None] | None = None) -> None:
    """Writes every entry below the open folder ``root``; nothing of it may exist yet.

    ``mtime``: seconds for every file and link, None for the present. Raises ``RepositoryUnusable`` for a tree that no
    honest git made (two entries of one name, ``..``), ``GitFailed`` for missing objects.
    """
    blobs = [e for e in listing if e.mode != GITLINK]
    with _Folders(root) as folders, _contents(git, blobs) as contents:
        for entry in listing:
            parent, name = folders.parent(entry.path)
            try:
                _write_entry(entry, parent, name, contents, mtime)
            except FileExistsError:
                raise RepositoryUnusable(f"the tree is damaged: {shown(entry.path)} stands in it twice") from None
            if written is not None:
                written(entry, os.stat(name, dir_fd=parent, follow_symlinks=False))


def _write_entry(entry: SizedEntry, parent: int, name: bytes, contents: IO[bytes] | None, mtime: int | None) -> None:
    if entry.mode == GITLINK:
        os.mkdir(name, 0o755, dir_fd=parent)
        return
    assert contents is not None
    _expect(contents, entry)
    if entry.mode == LINK:
        os.symlink(contents.read(entry.size), name, dir_fd=parent)
        if mtime is not None:
            os.utime(name, (mtime, mtime), dir_fd=parent, follow_symlinks=False)
    else:
        _write_file(entry, parent, name, contents, mtime)
    contents.read(1)


def _write_file(entry: SizedEntry, parent: int, name: bytes, contents: IO[bytes], mtime: int | None) -> None:
    mode = 0o755 if entry.mode == EXECUTABLE else 0o644
    fd = os.open(name, _WRITE, mode, dir_fd=parent)
    try:
        copy_to(contents, fd, entry.size)
        os.fchmod(fd, mode)                        # whatever the umask is
        if mtime is not None:
            os.utime(fd, (mtime, mtime))
    finally:
        os.close(fd)


def _expect(contents: IO[bytes], entry: SizedEntry) -> None:
    header = contents.readline().split()
    if len(header) != 3 or int(header[2]) != entry.size:
        raise GitFailed(f"the object of {shown(entry.path)} is missing or damaged; a partial clone must be fetched whole first")


@contextlib.contextmanager
def _contents(git: Git, blobs: list[SizedEntry]) -> Iterator[IO[bytes] | None]:
    if not blobs:
        yield None
        return
    with tempfile.TemporaryFile() as names:
        names.write("".join(f"{e.sha}\n" for e in blobs).encode("ascii"))
        names.seek(0)
        process = git.stream(names, "cat-file", "--batch", "--buffer")
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.stdout.close()
            process.kill()
            process.wait()


class _Folders:
    """Descriptors of the folders on the way to the entry at hand; a listing comes sorted, so each is opened once."""

    def __init__(self, root: int) -> None:
        self._stack: list[tuple[bytes, int]] = []
        self._last = b""
        self._root = root

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self._unwind(0)

    def parent(self, path: bytes) -> tuple[int, bytes]:
        folder, _, name = path.rpartition(b"/")
        if folder == self._last and self._stack and _is_plain(name):
            return self._stack[-1][1], name
        self._last = folder
        folders = folder.split(b"/") if folder else []
        if not all(_is_plain(part) for part in (*folders, name)):
            raise RepositoryUnusable(f"the tree is damaged: it holds the path {shown(path)}")
        common = 0
        while common < min(len(folders), len(self._stack)) and self._stack[common][0] == folders[common]:
            common += 1
        self._unwind(common)
        for part in folders[common:]:
            self._enter(part, path)
        return (self._stack[-1][1] if self._stack else self._root), name

    def _enter(self, part: bytes, path: bytes) -> None:
        above = self._stack[-1][1] if self._stack else self._root
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=above)
        try:
            self._stack.append((part, open_directory(part, at=above)))
        except OSError:
            raise RepositoryUnusable(f"the tree is damaged: {shown(path)} lies below a file or link") from None

    def _unwind(self, depth: int) -> None:
        while len(self._stack) > depth:
            os.close(self._stack.pop()[1])


def _is_plain(part: bytes) -> bool:
    return part not in (b"", b".", b"..") and part.lower() != b".git" and b"\0" not in part
