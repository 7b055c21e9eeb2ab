"""The bench: an agent's workspace and its sandbox session, put together from two rooms that do not know each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from capataz.contracts.coding import Emit
from capataz.contracts.errors import SandboxUnavailable
from capataz.contracts.faults import Faults
from capataz.contracts.sandbox import Mount, Sandbox, SandboxSpec, Session, WorkspaceMount
from capataz.contracts.workspace import Workspace

MakeSpec = Callable[[WorkspaceMount | None], SandboxSpec]


class Bench:
    """``contracts.runtime.Workbench``. ``workspace`` None: an agent with a private empty folder."""

    def __init__(self, sandbox: Sandbox, workspace: Workspace | None, make_spec: MakeSpec, emit: Emit, faults: Faults) -> None:
        self.sandbox_s = 0.0
        self._sandbox = sandbox
        self._workspace = workspace
        self._make_spec = make_spec
        self._emit = emit
        self._faults = faults
        self._session: Session | None = None
        self._since = 0.0
        self._starting = asyncio.Lock()

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        async with self._starting:
            if self._session is None:
                self._session = await self._start(forwards or {}, read_only)
        return self._session

    async def _start(self, forwards: Mapping[int, Path], read_only: tuple[Mount, ...]) -> Session:
        # The mount is asked for now: a restore gives the workspace other folders.
        mount = self._workspace.mount if self._workspace is not None else None
        made = self._make_spec(mount)
        spec = replace(made, forwards=dict(forwards), read_only=(*made.read_only, *read_only))
        self._faults.reach("sandbox.start.before")
        session = await self._sandbox.start(spec)
        self._faults.reach("sandbox.start.after")
        self._since = time.monotonic()
        self._emit("sandbox.started", {"backend": session.backend, "enforces": list(session.enforces), "purpose": spec.purpose})
        return session

    async def snapshot(self) -> str | None:
        return None if self._workspace is None else await self._workspace.snapshot()

    async def restore(self, tree: str) -> None:
        await self.close()
        if self._workspace is None:
            raise SandboxUnavailable("an agent without a workspace has no tree to go back to")
        await self._workspace.restore(tree)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        await asyncio.shield(session.kill())
        lived = time.monotonic() - self._since
        self.sandbox_s += lived
        self._emit("sandbox.ended", {"backend": session.backend, "duration_s": round(lived, 3), "reason": None})
