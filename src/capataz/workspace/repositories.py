"""The workspace room's entry: source repositories, runs, and what is left on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from capataz.contracts.errors import GitFailed
from capataz.contracts.faults import Faults, NoFaults
from capataz.contracts.workspace import RepositoryInfo, RunRepository
from capataz.workspace import inspection, publishing
from capataz.workspace.bare import make_bare, refresh
from capataz.workspace.checkouts import Checkouts
from capataz.workspace.dirtiness import why_dirty
from capataz.workspace.files import remove_folder, write_whole
from capataz.workspace.git import check_version
from capataz.workspace.local_workspace import remove_workspace
from capataz.workspace.names import folder_name
from capataz.workspace.run_repository import LocalRunRepository
from capataz.workspace.updating import update_checkout

_COPIES = "copies"  # a run's folder has this file when its workspaces are copies


class LocalRepositories:
    """``Repositories`` under ``home``: ``runs/RUN/{repo.git,ws,ignore}``, ``checkouts``, ``locks``, ``scratch``.

    ``overlay``: the host mounts overlays for this user (the sandbox's probe says so); otherwise workspaces are copies.
    """

    def __init__(self, home: Path, *, overlay: bool = True, faults: Faults | None = None) -> None:
        self._home = Path(home).absolute()
        self._overlay = overlay
        self._faults = faults or NoFaults()
        self._checkouts = Checkouts(self._home)
        self._runs: dict[str, LocalRunRepository] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends the processes that read objects. Nothing on disk changes."""
        with self._lock:
            for run in self._runs.values():
                run.close()

    @property
    def _scratch(self) -> Path:
        return self._home / "scratch"

    # ---- sources ----

    async def inspect(self, path: str | Path) -> RepositoryInfo:
        return await asyncio.to_thread(inspection.inspect, path)

    async def resolve(self, info: RepositoryInfo, rev: str) -> str:
        return await asyncio.to_thread(inspection.resolve, info, rev)

    async def ref(self, info: RepositoryInfo, name: str) -> str | None:
        return await asyncio.to_thread(inspection.ref, info, name)

    async def checked_out_at(self, info: RepositoryInfo, name: str) -> Path | None:
        """The folder of another working tree that has the branch checked out; None: none has."""
        return await asyncio.to_thread(publishing.checked_out_at, info, name)

    async def dirty(self, info: RepositoryInfo, new_tree: str | None = None) -> str | None:
        objects = [run.git_dir / "objects" for run in self._runs_of(info)]
        return await asyncio.to_thread(why_dirty, info, new_tree, scratch_folder=self._scratch, run_objects=objects)

    async def publish(self, run: RunRepository, sha: str, *, ref: str, expected_old: str | None) -> None:
        await asyncio.to_thread(
            publishing.publish, run.git_dir, run.info, sha,
            name=ref, expected_old=expected_old, scratch_folder=self._scratch, faults=self._faults,
        )

    async def update_checkout(self, info: RepositoryInfo, old_sha: str, new_sha: str) -> bool:
        return await asyncio.to_thread(
            update_checkout, info, old_sha, new_sha, scratch_folder=self._scratch, locks=self._home / "locks", faults=self._faults
        )

    # ---- runs ----

    def _run_folder(self, run_id: str) -> Path:
        return self._home / "runs" / folder_name(run_id)

    def _runs_of(self, info: RepositoryInfo) -> list[LocalRunRepository]:
        with self._lock:
            return [run for run in self._runs.values() if run.info.common_dir == info.common_dir]

    async def use_copies(self, run_id: str) -> None:
        """The run's workspaces will be plain copies: its sandbox mounts no overlays. Before its first workspace; kept on disk."""
        folder = self._run_folder(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _COPIES).touch()

    async def open_run(self, run_id: str, info: RepositoryInfo) -> LocalRunRepository:
        return await asyncio.to_thread(self._open_run, run_id, info)

    async def run_on(self, run_id: str, path: str | Path) -> LocalRunRepository:
        with self._lock:
            known = self._runs.get(run_id)
        if known is not None and str(known.info.path) == str(path) and _are_there(known.git_dir, known.info.git_dir):
            return known
        return await self.open_run(run_id, await self.inspect(path))

    def _open_run(self, run_id: str, info: RepositoryInfo) -> LocalRunRepository:
        check_version()
        folder = self._run_folder(run_id)
        with self._lock:
            known = self._runs.get(run_id)
            if known is not None and known.info == info and (known.git_dir / "HEAD").exists():
                return known
            try:
                self._make_run(folder, run_id, info)
            except OSError as error:
                raise GitFailed(f"the run's repository cannot be made in {folder}: {error}") from error
            if known is not None and known.info.common_dir == info.common_dir:
                # The source's HEAD moved on. One object a run, always: it guards the workspaces that it opened.
                known.info = info
                return known
            overlay = self._overlay and not (folder / _COPIES).exists()
            run = LocalRunRepository(folder, info, self._checkouts, overlay=overlay, faults=self._faults)
            self._runs[run_id] = run
            return run

    async def copy_run(self, run_id: str, new_run_id: str) -> None:
        """Gives a new run all objects that another made: its trees can be opened, whatever becomes of the other."""
        await asyncio.to_thread(self._copy_run, run_id, new_run_id)

    def _copy_run(self, run_id: str, new_run_id: str) -> None:
        source, folder = self._run_folder(run_id), self._run_folder(new_run_id)
        if not (source / "repo.git" / "HEAD").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".new-{uuid.uuid4().hex}"
        try:
            # Objects never change, so a hard link is a copy; what follows the source is written anew when the run is opened.
            shutil.copytree(source / "repo.git", temporary, symlinks=True, copy_function=_link, ignore=_unfinished)
            if (source / _COPIES).exists():
                (folder / _COPIES).touch()
            record = {**_record(source / "run.json"), "run_id": new_run_id}
            write_whole(folder / "run.json", json.dumps(record).encode("ascii"))
            temporary.rename(folder / "repo.git")
        except (OSError, shutil.Error) as error:
            raise GitFailed(f"the objects of run {run_id} cannot be copied: {error}") from error
        finally:
            remove_folder(temporary)

    def _make_run(self, folder: Path, run_id: str, info: RepositoryInfo) -> None:
        borrow = inspection.object_folders(info.common_dir)
        if (folder / "repo.git" / "HEAD").exists():
            refresh(folder / "repo.git", info, borrow)
            return
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".new-{uuid.uuid4().hex}"
        try:
            make_bare(temporary, info, borrow=borrow)
            record = {"run_id": run_id, "source": os.fsencode(info.path).decode("utf-8", "backslashreplace")}
            write_whole(folder / "run.json", json.dumps(record).encode("ascii"))
            with contextlib.suppress(FileExistsError, OSError):
                temporary.rename(folder / "repo.git")
            if not (folder / "repo.git" / "HEAD").exists():
                raise OSError("it could not be put in place")
        finally:
            remove_folder(temporary)

    async def remove_run(self, run_id: str, *, keep_objects: bool = True) -> None:
        """Removes the run's workspaces, and its objects unless they are kept. Idempotent. No session may use them."""
        await asyncio.to_thread(self._remove_run, run_id, keep_objects)

    def _remove_run(self, run_id: str, keep_objects: bool) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is not None:
            run.close()
        folder = self._run_folder(run_id)
        try:
            for workspace in _folders(folder / "ws"):
                remove_workspace(workspace, self._faults)
            remove_folder(folder / "ws")
            remove_folder(folder / "ignore")
            if not keep_objects:
                remove_folder(folder)
        except OSError as error:
            raise GitFailed(f"{folder}: cannot be removed: {error}", retryable=True) from error

    # ---- what is left ----

    async def leftovers(self) -> AsyncIterator[dict[str, Any]]:
        """``kind`` (run, workspace, checkout, scratch), ``path``, ``modified`` (seconds), and the ids where known.
        A checkout says whether a workspace stands on it."""
        for item in await asyncio.to_thread(self._leftovers):
            yield item

    def _leftovers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        used: set[str] = set()
        for run in _folders(self._home / "runs"):
            run_id = _record(run / "run.json").get("run_id", run.name)
            found.append(_item("run", run, run_id=run_id))
            for workspace in _folders(run / "ws"):
                record = _record(workspace / "workspace.json")
                used.add(record.get("tree", ""))
                found.append(_item("workspace", workspace, run_id=run_id, workspace_id=record.get("workspace_id")))
        for checkout in _folders(self._checkouts.folder):
            if not checkout.name.endswith(".index"):
                item = _item("checkout", checkout, tree=checkout.name, used=checkout.name in used)
                found.append({**item, "modified": self._checkouts.last_used(checkout.name) or item["modified"]})
        return found + [_item("scratch", folder) for folder in _folders(self._scratch)]

    async def remove_leftover(self, item: dict[str, Any]) -> None:
        """Removes what ``leftovers`` gave. The caller knows that nothing uses it."""

        def work() -> None:
            if item["kind"] == "checkout" and not item["tree"].startswith("."):
                self._checkouts.remove(item["tree"])
            elif item["kind"] == "run":
                self._remove_run(item["run_id"], keep_objects=False)
                remove_folder(Path(item["path"]))
            else:
                remove_folder(Path(item["path"]))

        await asyncio.to_thread(work)


def _are_there(*git_dirs: Path) -> bool:
    return all((git_dir / "HEAD").exists() for git_dir in git_dirs)


def _link(source: str, target: str) -> None:
    """A hard link for an object, a copy for everything else and where links are not possible."""
    if f"{os.sep}objects{os.sep}" in source and f"{os.sep}info{os.sep}" not in source:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _unfinished(folder: str, names: list[str]) -> set[str]:
    """Objects that a writer has not put in place yet."""
    return {name for name in names if name.startswith((".", "tmp"))}


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    except FileNotFoundError:
        return []


def _record(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    except (OSError, ValueError):
        return {}


def _item(kind: str, path: Path, **more: Any) -> dict[str, Any]:
    modified = 0.0
    with contextlib.suppress(OSError):
        modified = path.lstat().st_mtime
    return {"kind": kind, "path": str(path), "modified": modified, **more}
