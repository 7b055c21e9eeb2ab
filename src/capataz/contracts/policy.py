"""The policy of a repository (``capataz.toml`` or ``--policy FILE``), resolved once at a run's start and pinned with it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from capataz.contracts.records import Record

PROTECTED = ["capataz.toml", ".github/**"]


class Environment(Record):
    """``[environment]``. ``stack`` None: detected."""

    stack: str | None = None
    env: dict[str, str] = {}
    setup: list[str] = []
    setup_network: Literal["none", "registries"] | list[str] = "none"
    read_only: list[str] = []                  # host paths; only from a policy outside the repository


class LimitsPolicy(Record):
    """``[limits]``, in bytes and seconds."""

    memory: int = 2 << 30
    pids: int = 256
    disk: int = 4 << 30
    command_timeout: float = 600
    max_file: int = 64 << 20                   # the largest file that a freeze accepts


class Suite(Record):
    """``[suites.ID]``."""

    id: str
    command: str
    required: bool = True
    fast: bool = False
    timeout: float = 600
    network: Literal["none"] = "none"
    test_edits: Literal["add", "none", "any"] = "add"
    protects: list[str] = []
    detected: bool = False                     # found by us, not declared


class Scopes(Record):
    """``[scopes]``."""

    protected: list[str] = PROTECTED
    hidden: list[str] = []


class Publish(Record):
    """``[publish]``: ``branch`` may hold ``{run}``; None: the target branch itself."""

    branch: str | None = None


class Policy(Record):
    environment: Environment = Environment()
    limits: LimitsPolicy = LimitsPolicy()
    suites: list[Suite] = []
    scopes: Scopes = Scopes()
    publish: Publish = Publish()
    require_new_tests: bool = False
    models: dict[str, Any] = {}                # ``[models]`` as written: aliases; endpoints and prices only from outside the repository
    prompts: dict[str, str] = {}               # ``[prompts]``: templates by name; only from outside the repository
    source: Literal["repository", "file", "detected"] = "detected"
    guidance: dict[str, str] = Field(default_factory=dict)   # AGENTS.md, CLAUDE.md of the base: data for prompts, never authority

    def required_suite_ids(self) -> list[str]:
        return [s.id for s in self.suites if s.required]

    def suite(self, suite_id: str) -> Suite | None:
        return next((s for s in self.suites if s.id == suite_id), None)
