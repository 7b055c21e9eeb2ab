"""What the kernel needs around agents: models resolved, a harness, and a bench (workspace plus sandbox) to work on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from capataz.contracts.canonical import JsonValue
from capataz.contracts.coding import Emit, WorkspaceRef
from capataz.contracts.harness import AgentType, Harness, PriceBook
from capataz.contracts.journal import RunRecord
from capataz.contracts.sandbox import Mount, Session


class Workbench(Protocol):
    """An agent's workspace and, from first use on, its sandbox session. ``sandbox_s``: seconds that sessions lived."""

    sandbox_s: float

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        """Started at first use; later calls give the same session."""
        ...

    async def snapshot(self) -> str | None:
        """The tree now; None for an agent without a workspace."""
        ...

    async def restore(self, tree: str) -> None:
        """Ends the session, if one runs, and puts the files to ``tree``."""
        ...

    async def close(self) -> None:
        """Ends the session; the workspace's files stay for the freeze."""
        ...


class AgentRuntime(Protocol):
    """``options``: the run's, as stored at its start. Errors: ``UsageError`` (unknown model or harness), ``ProviderRejected``
    (no key), ``SandboxUnavailable``."""

    def prices(self, options: Mapping[str, Any]) -> PriceBook:
        """The price book of a run."""
        ...

    def resolve(self, model: str | None, options: Mapping[str, Any]) -> str:
        """The model's full id: the call's, else the run's, else the configured default; aliases resolved."""
        ...

    def identity(self, *, type: AgentType, tools: tuple[str, ...] | None, output_schema: JsonValue, harness: str) -> JsonValue:
        """Names and schema digests of the tools: part of an agent's key."""
        ...

    def harness(self, name: str, options: Mapping[str, Any]) -> Harness: ...

    def guidance(self, run: RunRecord) -> Mapping[str, str]: ...

    async def bench(self, run: RunRecord, ref: WorkspaceRef | None, *, agent: str, type: AgentType, emit: Emit) -> Workbench: ...
