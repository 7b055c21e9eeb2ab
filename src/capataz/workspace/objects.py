"""Git objects without a process for each: hashing and writing in place, reading through one long-lived ``cat-file``.

A snapshot of one changed file writes one blob and a few trees; starting git for each would cost more than the work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, ClassVar

from capataz.contracts.errors import GitFailed
from capataz.workspace.git import Git

TREE = "040000"
Tree = dict[bytes, tuple[str, str]]
"""One level of a tree: name -> (six-digit mode, sha)."""

_MAX_TREES = 8192
_MAX_READERS = 8
_CHUNK = 1 << 20


class ObjectStore:
    """Reads and writes the objects of one GIT_DIR. Thread-safe. Objects appear whole or not at all, also after kill -9."""

    def __init__(self, git: Git, object_format: str) -> None:
        self.git = git
        self.object_format = object_format
        self._objects = git.git_dir / "objects"
        self._trees: OrderedDict[str, Tree] = OrderedDict()
        self._lock = threading.Lock()
        self._reader = _Reader(git)
        self.empty_tree = self.hash("tree", b"")

    def close(self) -> None:
        self._reader.close()

    # ---- hashing and writing ----

    def digest(self) -> hashlib._Hash:
        """A fresh digest of the repository's kind."""
        return hashlib.sha256() if self.object_format == "sha256" else hashlib.sha1(usedforsecurity=False)

    def hash(self, kind: str, data: bytes) -> str:
        digest = self.digest()
        digest.update(b"%s %d\0" % (kind.encode(), len(data)))
        digest.update(data)
        return digest.hexdigest()

    def write(self, kind: str, data: bytes) -> str:
        sha = self.hash(kind, data)
        if not self.has_loose(sha):
            header = b"%s %d\0" % (kind.encode(), len(data))
            self._place(sha, lambda out: out.write(zlib.compress(header + data, 1)))
        return sha

    def write_file(self, source: IO[bytes], size: int) -> str:
        """A blob of exactly ``size`` bytes of a file that nobody changes, without holding it in memory."""
        digest, packer = self.digest(), zlib.compressobj(1)
        header = b"blob %d\0" % size
        digest.update(header)
        with self._temporary() as out:
            out.write(packer.compress(header))
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                out.write(packer.compress(chunk))
            out.write(packer.flush())
            out.flush()
            sha = digest.hexdigest()
            self._adopt(out.name, sha)
        return sha

    def has_loose(self, sha: str) -> bool:
        return self._path(sha).exists()

    def _path(self, sha: str) -> Path:
        return self._objects / sha[:2] / sha[2:]

    def _temporary(self) -> tempfile._TemporaryFileWrapper[bytes]:
        return tempfile.NamedTemporaryFile(dir=self._objects, prefix="tmp_obj_", delete=False)

    def _place(self, sha: str, fill: Callable[[IO[bytes]], object]) -> None:
        with self._temporary() as out:
            fill(out)
            out.flush()
            self._adopt(out.name, sha)

    def _adopt(self, temporary: str, sha: str) -> None:
        target = self._path(sha)
        Path(temporary).chmod(0o444)
        try:
            Path(temporary).replace(target)
        except FileNotFoundError:
            target.parent.mkdir(exist_ok=True)
            Path(temporary).replace(target)

    # ---- reading ----

    def info(self, name: str) -> tuple[str, str, int] | None:
        """(sha, kind, size in bytes) of an object or an expression such as ``SHA^{tree}``."""
        return self._reader.info(name)

    def read(self, name: str, kind: str) -> bytes:
        """Raises ``GitFailed`` when it is missing or of another kind."""
        found = self._reader.contents(name)
        if found is None or found[0] != kind:
            raise GitFailed(f"object {name} is missing or is no {kind}; a partial clone must be fetched whole first")
        return found[1]

    def tree(self, sha: str) -> Tree:
        """One level, by name. The caller must not change it."""
        with self._lock:
            known = self._trees.get(sha)
            if known is not None:
                self._trees.move_to_end(sha)
                return known
        parsed = {} if sha == self.empty_tree else parse_tree(self.read(sha, "tree"), len(sha) // 2)
        self._remember(sha, parsed)
        return parsed

    def write_tree(self, tree: Tree, write: Callable[[str, bytes], str] | None = None) -> str:
        sha = (write or self.write)("tree", serialize_tree(tree))
        self._remember(sha, dict(tree))
        return sha

    def _remember(self, sha: str, tree: Tree) -> None:
        with self._lock:
            self._trees[sha] = tree
            while len(self._trees) > _MAX_TREES:
                self._trees.popitem(last=False)

    def lookup(self, tree: str, path: bytes) -> tuple[str, str] | None:
        """(mode, sha) of a path, also of a folder; None: no such path."""
        entry = (TREE, tree)
        for name in path.split(b"/"):
            if entry[0] != TREE:
                return None
            found = self.tree(entry[1]).get(name)
            if found is None:
                return None
            entry = found
        return entry

    # ---- editing ----

    def edit(self, tree: str, edits: Iterable[tuple[bytes, tuple[str, str] | None]]) -> str:
        """``tree`` with paths set to (mode, sha) or removed; folders that become empty vanish, a file in the way gives way."""
        removals: dict[bytes, object] = {}
        settings: dict[bytes, object] = {}
        for path, entry in edits:
            _plant(removals if entry is None else settings, path.split(b"/"), entry)
        tree = self._apply(tree, removals) if removals else tree
        return self._apply(tree, settings) if settings else tree

    def _apply(self, tree: str, edits: dict[bytes, object]) -> str:
        level = dict(self.tree(tree))
        for name, edit in edits.items():
            if isinstance(edit, dict):
                old = level.get(name)
                is_folder = old is not None and old[0] == TREE
                if old is not None and not is_folder and not _sets_something(edit):
                    continue                       # removing below a file: nothing is there
                below = self._apply(old[1] if old and is_folder else self.empty_tree, edit)  # pyright: ignore[reportUnknownArgumentType]
                edit = None if below == self.empty_tree else (TREE, below)
            if edit is None:
                level.pop(name, None)
            else:
                level[name] = edit  # type: ignore[assignment]
        return self.write_tree(level)


def _plant(root: dict[bytes, object], parts: list[bytes], entry: tuple[str, str] | None) -> None:
    for part in parts[:-1]:
        below = root.get(part)
        if not isinstance(below, dict):
            below = root[part] = {}
        root = below  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(root.get(parts[-1]), dict):
        root[parts[-1]] = entry


def _sets_something(edits: dict[bytes, object]) -> bool:
    return any(_sets_something(e) if isinstance(e, dict) else e is not None for e in edits.values())  # pyright: ignore


def parse_tree(data: bytes, digest_bytes: int) -> Tree:
    """The entries of a raw tree object."""
    tree: Tree = {}
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        end = data.index(b"\0", space)
        sha = data[end + 1 : end + 1 + digest_bytes].hex()
        tree[data[space + 1 : end]] = (data[at:space].decode("ascii").rjust(6, "0"), sha)
        at = end + 1 + digest_bytes
    return tree


def serialize_tree(tree: Tree) -> bytes:
    """The raw tree object; git sorts a folder as if its name ended in a slash."""
    names = sorted(tree, key=lambda name: name + b"/" if tree[name][0] == TREE else name)
    return b"".join(
        b"%s %s\0%s" % (tree[name][0].lstrip("0").encode("ascii"), name, bytes.fromhex(tree[name][1])) for name in names
    )


class _Reader:
    """One ``cat-file --batch-command``, started when first needed; the least recently used of many is closed."""

    _open: ClassVar[OrderedDict[int, weakref.ref[_Reader]]] = OrderedDict()
    _open_lock = threading.Lock()

    def __init__(self, git: Git) -> None:
        self._git = git
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def info(self, name: str) -> tuple[str, str, int] | None:
        with self._lock:
            return self._ask("info", name)

    def contents(self, name: str) -> tuple[str, bytes] | None:
        with self._lock:
            found = self._ask("contents", name)
            if found is None:
                return None
            assert self._process is not None and self._process.stdout is not None
            data = self._process.stdout.read(found[2] + 1)
            if len(data) != found[2] + 1:
                self._stop()
                raise GitFailed(f"git cat-file ended while it gave {name}", retryable=True)
            return found[1], data[:-1]

    def _ask(self, verb: str, name: str) -> tuple[str, str, int] | None:
        if "\n" in name or "\0" in name:
            return None
        for attempt in (0, 1):
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(f"{verb} {name}\n".encode("utf-8", "surrogateescape"))
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = b""
            if line.endswith(b"\n"):
                break
            self._stop()                           # it may have been closed or killed between two questions: once more
            if attempt:
                raise GitFailed(f"git cat-file broke at {name}: damaged objects?", retryable=True)
        parts = line.split()  # pyright: ignore[reportPossiblyUnboundVariable]
        if len(parts) != 3 or parts[-1] == b"missing" or not parts[2].isdigit():
            return None
        return parts[0].decode(), parts[1].decode(), int(parts[2])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = self._git.popen("cat-file", "--batch-command")
            self._admit()
        return self._process

    def _admit(self) -> None:
        with _Reader._open_lock:
            _Reader._open[id(self)] = weakref.ref(self)
            surplus = [_Reader._open.popitem(last=False)[1] for _ in range(len(_Reader._open) - _MAX_READERS)]
        for reference in surplus:
            other = reference()
            # A reader that is busy in another thread keeps its process; it is counted again when it next starts one.
            if other is not None and other is not self and other._lock.acquire(blocking=False):
                try:
                    other._stop()
                finally:
                    other._lock.release()

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        with _Reader._open_lock:
            _Reader._open.pop(id(self), None)
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._stop()


def copy_to(source: IO[bytes], target: int, size: int) -> None:
    """Exactly ``size`` bytes from a pipe to a descriptor. Raises ``GitFailed`` when the pipe ends before."""
    left = size
    while left:
        chunk = source.read(min(left, _CHUNK))
        if not chunk:
            raise GitFailed("git ended in the middle of an object")
        left -= len(chunk)
        while chunk:
            chunk = chunk[os.write(target, chunk) :]
