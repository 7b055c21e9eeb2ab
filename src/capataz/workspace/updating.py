"""Bringing a clean checkout to the promoted commit: only files that differ, atomically, never through a link.

A crash leaves some files new and the index old. The next call finds every file either old or new and finishes; a file
that is neither was changed by somebody, and nothing is written.
"""

# ruff: noqa: PTH123, PTH208  -- works on descriptors and bytes, for which pathlib has no words
from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.errors import GitFailed, RepositoryUnusable
from capataz.contracts.faults import Faults
from capataz.contracts.workspace import Change, RepositoryInfo
from capataz.workspace.bare import scratch
from capataz.workspace.checkouts import locked
from capataz.workspace.files import parent_of
from capataz.workspace.index_file import SKIP_WORKTREE, IndexEntry, serialize_index
from capataz.workspace.inspection import config_value, ref, source_git
from capataz.workspace.listing import changes
from capataz.workspace.materialise import GITLINK, LINK
from capataz.workspace.objects import ObjectStore
from capataz.workspace.ownership import Owner
from capataz.workspace.source_files import SourceFiles
from capataz.workspace.source_index import SourceIndex, load_index

_LOCK_WAIT_S = 5.0
_FOLLOWING_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def update_checkout(info: RepositoryInfo, old_sha: str, new_sha: str, *, scratch_folder: Path, locks: Path, faults: Faults) -> bool:
    """False: not checked out, somebody changed it, or another git holds the index. Raises ``RepositoryUnusable`` where it
    may not be written. Idempotent."""
    if info.work_tree is None or not _is_checked_out(info, new_sha):
        return False
    name = hashlib.sha256(os.fsencode(info.git_dir)).hexdigest()[:32]
    with locked(locks / f"update-{name}"), scratch(scratch_folder, info, []) as git:
        store = ObjectStore(git, info.object_format)
        try:
            faults.reach("checkout.before")
            difference = changes(git, f"{old_sha}^{{tree}}", f"{new_sha}^{{tree}}")
            done = _update(info, store, difference, scratch_folder)
            faults.reach("checkout.after")
            return done
        except OSError as error:
            raise RepositoryUnusable(f"{info.path}: the checked-out files cannot be updated: {error}") from error
        finally:
            store.close()


def _is_checked_out(info: RepositoryInfo, new_sha: str) -> bool:
    head = source_git(info).run("symbolic-ref", "-q", "HEAD")
    if head.code != 0:
        return False
    return ref(info, os.fsdecode(head.stdout.rstrip(b"\n"))) == new_sha


def _update(info: RepositoryInfo, store: ObjectStore, difference: list[Change], scratch_folder: Path) -> bool:
    with _index_lock(info.git_dir) as lock:
        if lock is None:
            return False
        index = load_index(info, scratch_folder)
        if all(_holds(index, c.path, c.new_mode, c.new_sha) for c in difference):
            return True                            # an earlier call finished; what was done to the files since is not ours
        with SourceFiles(info, store, file_mode=config_value(info, "core.fileMode") != "false") as files:
            if not _may_update(index, files, difference):
                return False
            writer = _Writer(info, store, files)
            entries = writer.apply(index, difference)
        lock.replace_index(serialize_index(entries, len(store.empty_tree) // 2))
        return True


# ---- may it be done ----


def _holds(index: SourceIndex, path: bytes, mode: str, sha: str) -> bool:
    entry = index.entries.get(path)
    if path in index.unmerged:
        return False
    return entry is None if mode == "000000" else entry is not None and (entry.mode, entry.sha) == (mode, sha)


def _may_update(index: SourceIndex, files: SourceFiles, difference: list[Change]) -> bool:
    going = {c.path for c in difference if c.status == "D"}
    coming = {c.path for c in difference if c.status == "A"}
    return all(_may_change(index, files, change, going, coming) for change in difference)


def _may_change(index: SourceIndex, files: SourceFiles, change: Change, going: set[bytes], coming: set[bytes]) -> bool:
    entry = index.entries.get(change.path)
    if not (_holds(index, change.path, change.old_mode, change.old_sha) or _holds(index, change.path, change.new_mode, change.new_sha)):
        return False
    if entry is not None and entry.extended & SKIP_WORKTREE:
        return True
    states: set[str] = set()
    if entry is not None and (entry.mode, entry.sha) == (change.old_mode, change.old_sha):
        states.add(files.tracked_state(entry, index.written_ns))
    for mode, sha in ((change.old_mode, change.old_sha), (change.new_mode, change.new_sha)):
        if mode != "000000":
            states.add(files.state(change.path, mode, sha))
    if states & {"same", "missing"}:
        return True
    if "folder" in states:
        # A file comes where a folder is: all in it must go. A file has given way to a folder: made by a call cut short.
        return set(files.files_below(change.path) or []) <= (going if change.status != "D" else coming)
    return "blocked" in states and _blocked_by(change.path, files, coming if change.status == "D" else going)


def _blocked_by(path: bytes, files: SourceFiles, known: set[bytes]) -> bool:
    """A file or link stands where a folder was or is needed: fine when it is one that goes away or has come, which is
    itself checked as such."""
    parts = path.split(b"/")
    for end in range(1, len(parts)):
        above = b"/".join(parts[:end])
        try:
            st = files.stat(above)
        except NotADirectoryError:
            return False
        if st is not None and st.st_mode & 0o170000 != 0o040000:
            return above in known
    return False


# ---- doing it ----


@dataclass(slots=True)
class _Writer:
    info: RepositoryInfo
    store: ObjectStore
    files: SourceFiles

    def apply(self, index: SourceIndex, difference: list[Change]) -> list[IndexEntry]:
        entries = dict(index.entries)
        skipped = {p for p, e in entries.items() if e.extended & SKIP_WORKTREE}
        for change in difference:
            if change.status == "D":
                if change.path not in skipped:
                    self._remove(change)
                entries.pop(change.path, None)
        self.files.forget()
        for change in difference:
            if change.status != "D":
                entries[change.path] = self._set(change, entries.get(change.path), change.path in skipped)
        return list(entries.values())

    def _remove(self, change: Change) -> None:
        try:
            with parent_of(self.files.root, change.path) as (parent, name):
                if change.old_mode == GITLINK:
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=parent)
                else:
                    with contextlib.suppress(IsADirectoryError, FileNotFoundError):
                        os.unlink(name, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return
        self._remove_empty_parents(change.path)

    def _remove_empty_parents(self, path: bytes) -> None:
        folder = path.rpartition(b"/")[0]
        while folder:
            try:
                with parent_of(self.files.root, folder) as (parent, name):
                    os.rmdir(name, dir_fd=parent)
            except OSError:
                return
            folder = folder.rpartition(b"/")[0]

    def _set(self, change: Change, old: IndexEntry | None, skipped: bool) -> IndexEntry:
        new = IndexEntry(
            path=change.path, mode=change.new_mode, sha=change.new_sha, size=0,
            flags=old.flags if old else 0, extended=old.extended if old else 0,
        )
        if skipped:
            return new
        if self.files.state(change.path, change.new_mode, change.new_sha) != "same":
            self.files.forget()
            self._write(change)
        st = self.files.stat(change.path)
        return new if st is None or change.new_mode == GITLINK else new.with_stat(st)

    def _write(self, change: Change) -> None:
        self._make_parents(change.path)
        with parent_of(self.files.root, change.path) as (parent, name):
            _clear_folder(name, parent)
            if change.new_mode == GITLINK:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=parent)
                return
            # A fixed name: what a crash leaves is removed by the call that finishes.
            temporary = b".capataz-" + hashlib.sha256(change.path).hexdigest()[:16].encode()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            self._write_temporary(change, temporary, parent)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _write_temporary(self, change: Change, temporary: bytes, parent: int) -> None:
        owner = Owner.of(Path(f"/proc/self/fd/{parent}"))
        data = self.store.read(change.new_sha, "blob")
        if change.new_mode == LINK:
            os.symlink(data, temporary, dir_fd=parent)
            if not owner.is_us and os.geteuid() == 0:
                os.chown(temporary, owner.uid, owner.gid, dir_fd=parent, follow_symlinks=False)
            return
        fd = os.open(temporary, _FOLLOWING_WRITE, 0o777 if change.new_mode == "100755" else 0o666, dir_fd=parent)
        with open(fd, "wb") as out:
            out.write(data)
            owner.give_fd(fd)

    def _make_parents(self, path: bytes) -> None:
        parts = path.split(b"/")
        for end in range(1, len(parts)):
            with parent_of(self.files.root, b"/".join(parts[:end])) as (parent, name):
                try:
                    os.mkdir(name, dir_fd=parent)
                except FileExistsError:
                    continue
                owner = Owner.of(Path(f"/proc/self/fd/{parent}"))
                if not owner.is_us and os.geteuid() == 0:
                    os.chown(name, owner.uid, owner.gid, dir_fd=parent, follow_symlinks=False)


def _clear_folder(name: bytes, parent: int) -> None:
    """An empty folder (or folders of them) where a file comes."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return
    try:
        for child in os.listdir(fd):
            _clear_folder(os.fsencode(child), fd)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=parent)


# ---- the index's lock ----


@dataclass(frozen=True, slots=True)
class _Lock:
    """``index.lock`` as git takes it, and a second name of it that says the lock is ours: one left by a kill is known so."""

    git_dir: Path
    mark: Path

    def replace_index(self, data: bytes) -> None:
        with self.mark.open("r+b") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        (self.git_dir / "index.lock").rename(self.git_dir / "index")


@contextlib.contextmanager
def _index_lock(git_dir: Path) -> Iterator[_Lock | None]:
    mark, lock = git_dir / "index.capataz", git_dir / "index.lock"
    if mark.exists():
        if lock.exists() and lock.samefile(mark):
            lock.unlink()
        mark.unlink()                              # never reused: after the rename it is another name of the index itself
    _make_mark(git_dir, mark)
    taken = _take(mark, lock)
    try:
        yield _Lock(git_dir, mark) if taken else None
    finally:
        if taken and lock.exists() and lock.samefile(mark):
            lock.unlink()
        mark.unlink(missing_ok=True)


def _make_mark(git_dir: Path, mark: Path) -> None:
    fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(fd, (git_dir / "index").stat().st_mode & 0o777)
        Owner.of(git_dir).give_fd(fd)
    finally:
        os.close(fd)


def _take(mark: Path, lock: Path) -> bool:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            lock.hardlink_to(mark)
            return True
        except FileExistsError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        except OSError as error:
            raise GitFailed(f"{lock}: cannot be made: {error}") from error
