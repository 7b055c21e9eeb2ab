"""A ``Session`` over a plain folder, without isolation: for tests of what stands on sandboxes."""

# ruff: noqa: PTH118, PTH120, PTH116, PTH123, PTH103, PTH101, PTH110, PTH112, PTH107, ASYNC230, ASYNC240
# Paths are bytes here.
from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capataz.contracts.errors import ForbiddenAccess, NotFound, UsageError
from capataz.contracts.sandbox import WORKSPACE, CommandResult, DirEntry, FileStat


class FakeFiles:
    """The rules of ``SessionFiles`` on a folder of the host (with the races that the real helper does not have)."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root.resolve())

    def _path(self, path: bytes, *, follow: bool = True) -> bytes:
        if path.startswith(b"/") or b".." in path.split(b"/") or b"\0" in path:
            raise ForbiddenAccess(f"{path!r} leaves the workspace")
        full = os.path.join(self._root, path)
        real = os.path.realpath(full if follow else os.path.dirname(full))
        if real != self._root and not real.startswith(self._root + b"/"):
            raise ForbiddenAccess(f"{os.fsdecode(path)} leads out of the workspace")
        return full

    async def stat(self, path: bytes) -> FileStat:
        try:
            found = os.stat(self._path(path))
        except (FileNotFoundError, NotADirectoryError):
            return FileStat("missing", 0, 0)
        kind = "dir" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
        return FileStat(kind, found.st_size, stat.S_IMODE(found.st_mode))

    async def read(self, path: bytes, *, offset: int = 0, limit: int = 16 << 20) -> bytes:
        try:
            with open(self._path(path), "rb") as stream:
                stream.seek(offset)
                return stream.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{os.fsdecode(path)} does not exist") from None
        except OSError as error:
            raise UsageError(f"{os.fsdecode(path)}: {error.strerror}") from None

    async def write(self, path: bytes, data: bytes, *, mode: int | None = None) -> None:
        full = self._path(path)
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as stream:
                stream.write(data)
            if mode is not None:
                os.chmod(full, mode)
        except OSError as error:
            raise UsageError(f"{os.fsdecode(path)}: {error.strerror}") from None

    async def list(self, path: bytes, *, depth: int = 1, limit: int = 10_000) -> list[DirEntry]:
        top = self._path(path)
        if not os.path.exists(top):
            raise NotFound(f"{os.fsdecode(path)} does not exist")
        if not os.path.isdir(top):
            raise UsageError(f"{os.fsdecode(path)} is not a folder")
        found: list[DirEntry] = []
        self._walk(top, b"", depth, found)
        return found[:limit]

    def _walk(self, folder: bytes, prefix: bytes, depth: int, found: list[DirEntry]) -> None:
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            kind = "link" if entry.is_symlink() else "dir" if entry.is_dir() else "file" if entry.is_file() else "other"
            found.append(DirEntry(prefix + entry.name, kind, entry.stat(follow_symlinks=False).st_size))
            if kind == "dir" and depth > 1:
                self._walk(entry.path, prefix + entry.name + b"/", depth - 1, found)

    async def remove(self, path: bytes) -> None:
        try:
            os.remove(self._path(path, follow=False))
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{os.fsdecode(path)} does not exist") from None


class FakeSession:
    """Runs commands as plain processes in ``root``, which stands for ``/workspace``."""

    backend = "fake"
    enforces: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = FakeFiles(root)
        self.killed = False

    async def run(
        self,
        argv: tuple[str, ...] | list[str],
        *,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 120,
        output_limit: int = 64 << 10,
        spool_limit: int = 0,
        on_output: Callable[[bytes], Any] | None = None,
    ) -> CommandResult:
        began = time.monotonic()
        folder = self.root if cwd == WORKSPACE else self.root / cwd.removeprefix(WORKSPACE + "/")
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=folder, env={"PATH": os.environ["PATH"], **(env or {})}, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            return CommandResult(exit_code=127, stdout=b"", stderr=f"{argv[0]}: {error.strerror}\n".encode(), truncated=0, stdout_total=0, stderr_total=0, reason="exit", duration_s=0)
        reason = "exit"
        talk = asyncio.ensure_future(process.communicate(stdin))
        try:
            out, err = await asyncio.wait_for(asyncio.shield(talk), timeout_s)
        except TimeoutError:
            reason = "timeout"
            os.killpg(process.pid, signal.SIGKILL)
            out, err = await talk
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            await talk
            raise
        if on_output is not None and out:
            on_output(out)
        return self._result(process.returncode or 0, out, err, reason, time.monotonic() - began, output_limit, spool_limit)

    def _result(self, code: int, out: bytes, err: bytes, reason: Any, duration: float, output_limit: int, spool_limit: int) -> CommandResult:
        spools = [self._spool(data, spool_limit) for data in (out, err)]
        return CommandResult(
            exit_code=-1 if reason != "exit" else 128 - code if code < 0 else code,
            stdout=_cut(out, output_limit), stderr=_cut(err, output_limit), truncated=max(len(out) - output_limit, 0) + max(len(err) - output_limit, 0),
            stdout_total=len(out), stderr_total=len(err), reason=reason, duration_s=duration, full_stdout=spools[0], full_stderr=spools[1],
        )

    def _spool(self, data: bytes, limit: int) -> Path | None:
        if not limit or not data:
            return None
        path = self.root.parent / f"spool-{time.monotonic_ns()}"
        path.write_bytes(data[:limit])
        return path

    async def kill(self) -> None:
        self.killed = True


def _cut(data: bytes, limit: int) -> bytes:
    if len(data) <= limit:
        return data
    half = limit // 2
    return data[:half] + f"\n[… {len(data) - 2 * half} bytes left out …]\n".encode() + data[-half:]
