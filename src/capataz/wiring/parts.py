"""Building a worker from the rooms: the one place where every implementation is named."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capataz.contracts.blobs import Blobs
from capataz.contracts.clock import Clock, SystemClock
from capataz.contracts.coding import JobOptions
from capataz.contracts.errors import SandboxUnavailable, UsageError
from capataz.contracts.faults import Faults, faults_from_environment
from capataz.contracts.harness import Harness
from capataz.contracts.journal import Journal
from capataz.contracts.sandbox import Sandbox
from capataz.contracts.workspace import Repositories
from capataz.wiring.config import Config
from capataz.wiring.home import runtime_folder

if TYPE_CHECKING:
    from capataz.agents.models import ModelsConfig
    from capataz.evidence.service import EvidenceService


@dataclass(frozen=True, slots=True)
class Parts:
    """The rooms' implementations, opened."""

    config: Config
    clock: Clock
    faults: Faults
    journal: Journal
    blobs: Blobs
    repositories: Repositories
    sandboxes: Sandboxes
    evidence: EvidenceService
    models: ModelsConfig


class Sandboxes:
    """Backends by name, each probed once. ``local`` only where the person trusts the repository."""

    def __init__(self, config: Config) -> None:
        self._folder = runtime_folder(config.home)
        self._known: dict[str, Sandbox] = {}

    async def of(self, options: JobOptions) -> Sandbox:
        """Raises ``SandboxUnavailable``: no backend stands in for another."""
        if options.sandbox == "local" and not options.trust_repository:
            raise SandboxUnavailable("the local sandbox isolates nothing; it needs --trust-repository")
        return await self.named(options.sandbox)

    async def named(self, name: str) -> Sandbox:
        from capataz.sandbox import make_sandbox

        if name not in self._known:
            sandbox = make_sandbox(name, runtime_dir=self._folder)
            await sandbox.probe()
            self._known[name] = sandbox
        return self._known[name]


class Harnesses:
    """Harnesses by name: ``agno``, or ``command:NAME`` for a coding program of the table."""

    def __init__(self, models: ModelsConfig, clock: Clock) -> None:
        self._models = models
        self._clock = clock
        self._known: dict[str, Harness] = {}

    def __call__(self, name: str) -> Harness:
        if name not in self._known:
            self._known[name] = self._make(name)
        return self._known[name]

    def _make(self, name: str) -> Harness:
        if name == "agno":
            from capataz.agents.harness import AgnoHarness

            return AgnoHarness(self._models.client, self._clock)
        kind, _, program = name.partition(":")
        if kind == "command":
            from capataz.agents.command.harness import command_harness

            return command_harness(program, self._models)
        raise UsageError(f"{name!r} is no harness; there are agno and command:NAME")


def step_environment() -> dict[str, str]:
    """What a step's function sees: the worker's own environment, since steps are the program's trusted side."""
    return {k: v for k, v in os.environ.items() if not k.startswith("CAPATAZ_FAULT")}


@asynccontextmanager
async def open_parts(config: Config) -> AsyncIterator[Parts]:
    from capataz.agents.models import ModelsConfig
    from capataz.evidence.service import EvidenceService
    from capataz.store.store import open_store
    from capataz.workspace.repositories import LocalRepositories

    faults = faults_from_environment()
    clock = SystemClock()
    store = await open_store(config.home, config.database_url, config.blob_url, faults=faults)
    try:
        repositories = LocalRepositories(config.home, faults=faults)
        sandboxes = Sandboxes(config)
        evidence = EvidenceService(
            repositories=repositories, sandbox_for=sandboxes.of, blobs=store.blobs, home=config.home, clock=clock, faults=faults
        )
        yield Parts(
            config, clock, faults, store.journal, store.blobs, repositories, sandboxes, evidence,
            ModelsConfig(config.settings.get("models")),
        )
    finally:
        await store.close()
