"""Building a worker from the rooms: the one place where every implementation is named."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.clock import Clock, SystemClock
from capataz.contracts.coding import JobOptions
from capataz.contracts.errors import SandboxUnavailable, UsageError
from capataz.contracts.faults import Faults, faults_from_environment
from capataz.contracts.harness import AgentType, Harness
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
    models: ModelTables


class Sandboxes:
    """Backends by name, each probed once. ``local`` only where the person trusts the repository."""

    def __init__(self, config: Config) -> None:
        self._folder = runtime_folder(config.home)
        self._known: dict[str, Sandbox] = {}
        self._probing = asyncio.Lock()
        self._enforces: dict[str, tuple[str, ...]] = {}

    async def of(self, options: JobOptions) -> Sandbox:
        """Raises ``SandboxUnavailable``: no backend stands in for another."""
        if options.sandbox == "local" and not options.trust_repository:
            raise SandboxUnavailable("the local sandbox isolates nothing; it needs --trust-repository")
        return await self.named(options.sandbox)

    async def overlays(self, options: JobOptions) -> bool:
        """Whether this backend mounts overlays here; workspaces are copies otherwise."""
        await self.of(options)
        return "overlay" in self._enforces[options.sandbox]

    async def named(self, name: str) -> Sandbox:
        from capataz.sandbox import make_sandbox

        async with self._probing:              # agents that start together wait for one probe
            if name not in self._known:
                sandbox = make_sandbox(name, runtime_dir=self._folder)
                self._enforces[name] = await sandbox.probe()
                self._known[name] = sandbox
        return self._known[name]


class ModelTables:
    """The models of a run: the installation's, with the ``[models]`` of the run's policy on top."""

    def __init__(self, installed: ModelsConfig) -> None:
        self.installed = installed
        self._known: dict[str, ModelsConfig] = {}

    def of(self, options: Mapping[str, Any]) -> ModelsConfig:
        """Raises ``InvalidPolicy`` for tables that a policy of this origin may not set."""
        table = options.get("models")
        if not table:
            return self.installed
        trusted = bool(options.get("models_trusted"))
        key = digest([table, trusted])
        if key not in self._known:
            self._known[key] = self.installed.with_project(table, trusted=trusted)
        return self._known[key]

    async def close(self) -> None:
        for models in (self.installed, *self._known.values()):
            await models.close()


class Harnesses:
    """Harnesses by name: ``agno``, ``langgraph`` for a graph of the program's own, or ``command:NAME`` for a coding
    program of the ``[commands]`` tables."""

    def __init__(self, commands: Mapping[str, Any] | None, clock: Clock) -> None:
        self._commands = commands
        self._clock = clock
        self._known: dict[tuple[str, int], Harness] = {}

    def of(self, name: str, models: ModelsConfig) -> Harness:
        """Raises ``UsageError`` for an unknown one."""
        place = (name, id(models))
        if place not in self._known:
            self._known[place] = self._make(name, models)
        return self._known[place]

    def _make(self, name: str, models: ModelsConfig) -> Harness:
        if name == "agno":
            from capataz.agents.harness import AgnoHarness

            return AgnoHarness(models.client, self._clock)
        if name == "langgraph":
            from capataz.agents.foreign.supersteps import GraphHarness

            return GraphHarness()
        from capataz.agents.command.harness import command_harness

        return command_harness(self._program(name), models, self._commands, self._clock)

    @staticmethod
    def _program(name: str) -> str:
        kind, _, program = name.partition(":")
        if kind != "command" or not program:
            raise UsageError(f"{name!r} is no harness; there are agno and command:NAME")
        return program

    def identity(self, type: AgentType, tools: tuple[str, ...] | None, harness: str) -> JsonValue:
        """Names of an agent's tools and the digest of their schemas, or the program that it is: part of its key."""
        if harness == "langgraph":
            return {"harness": harness}
        if harness == "agno":
            from capataz.agents.tools.catalogue import choose

            chosen = choose(type, tools, ())
            return {"names": list(chosen), "schemas": digest([tool.schema for tool in chosen.values()])}
        from capataz.agents.command.programs import command_spec

        try:
            return command_spec(self._program(harness), self._commands or {}).identity()
        except UsageError:
            return {"harness": harness}  # refused, with the reason, when it is performed


def step_environment(models: ModelsConfig) -> dict[str, str]:
    """What a step's function sees: the worker's environment without the keys of model providers."""
    secrets = models.known_secrets()
    return {k: v for k, v in os.environ.items() if k != "CAPATAZ_FAULT" and v not in secrets}


@asynccontextmanager
async def open_parts(config: Config) -> AsyncIterator[Parts]:
    from capataz.agents.models import ModelsConfig
    from capataz.evidence.service import EvidenceService
    from capataz.store.store import open_store
    from capataz.workspace.repositories import LocalRepositories

    faults = faults_from_environment()
    clock = SystemClock()
    models = ModelTables(ModelsConfig(config.settings.get("models")))
    store = await open_store(config.home, config.database_url, config.blob_url, faults=faults)
    try:
        repositories = LocalRepositories(config.home, faults=faults)
        sandboxes = Sandboxes(config)
        evidence = EvidenceService(
            repositories=repositories, sandbox_for=sandboxes.of, blobs=store.blobs, home=config.home, clock=clock, faults=faults,
            overlays=sandboxes.overlays,
        )
        yield Parts(config, clock, faults, store.journal, store.blobs, repositories, sandboxes, evidence, models)
        repositories.close()
    finally:
        await models.close()
        await store.close()
