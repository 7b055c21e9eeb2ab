"""``contracts.runtime.AgentRuntime`` from the agents, sandbox, workspace and evidence rooms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.coding import CodingJob, Emit, JobOptions, WorkspaceRef
from capataz.contracts.faults import Faults
from capataz.contracts.harness import AgentType, Harness, PriceBook
from capataz.contracts.journal import RunRecord
from capataz.contracts.sandbox import Sandbox, SandboxSpec
from capataz.contracts.workspace import Repositories, Workspace
from capataz.wiring.bench import Bench, MakeSpec

if TYPE_CHECKING:
    from capataz.agents.models import ModelsConfig
    from capataz.wiring.parts import Harnesses


class Agents:
    """``environment_of``: tools, variables and limits of a coding job's sandboxes (evidence room)."""

    def __init__(
        self,
        *,
        models: Callable[[Mapping[str, Any]], ModelsConfig],
        harnesses: Harnesses,
        repositories: Repositories,
        sandbox_for: Callable[[JobOptions], Awaitable[Sandbox]],
        environment_of: Callable[[str, CodingJob], Awaitable[Any]],
        faults: Faults,
    ) -> None:
        self._models = models
        self._harnesses = harnesses
        self._tool_identity = lru_cache(maxsize=512)(harnesses.identity)
        self._repositories = repositories
        self._sandbox_for = sandbox_for
        self._environment_of = environment_of
        self._faults = faults
        self._jobs: dict[str, CodingJob | None] = {}

    # ---- models and tools ----------------------------------------------------------------------

    def resolve(self, model: str | None, options: Mapping[str, Any]) -> str:
        return self._models(options).resolve(model, default=options.get("model"))

    def prices(self, options: Mapping[str, Any]) -> PriceBook:
        return self._models(options).prices()

    def identity(self, *, type: AgentType, tools: tuple[str, ...] | None, output_schema: JsonValue, harness: str) -> JsonValue:
        names = self._tool_identity(type, tools, harness)
        return names if output_schema is None else {"tools": names, "output": digest(output_schema)}

    def harness(self, name: str, options: Mapping[str, Any]) -> Harness:
        return self._harnesses.of(name, self._models(options))

    def guidance(self, run: RunRecord) -> Mapping[str, str]:
        job = self.job(run)
        return job.policy.guidance if job is not None else {}

    def job(self, run: RunRecord) -> CodingJob | None:
        """The coding job that is the run's input; None for other programs."""
        if run.run_id not in self._jobs:
            given = run.input if isinstance(run.input, dict) else {}
            given = given["job"] if isinstance(given.get("job"), dict) else given  # ``rebase`` wraps it
            is_job = {"request", "target", "policy"} <= set(given)
            self._jobs[run.run_id] = CodingJob.model_validate(given) if is_job else None
        return self._jobs[run.run_id]

    def forget(self, run_id: str) -> None:
        self._jobs.pop(run_id, None)

    # ---- benches -------------------------------------------------------------------------------

    async def bench(self, run: RunRecord, ref: WorkspaceRef | None, *, agent: str, type: AgentType, emit: Emit) -> Bench:
        job = self.job(run)
        options = job.options if job is not None else JobOptions()
        sandbox = await self._sandbox_for(options)
        workspace = None if ref is None else await self._open(run.run_id, ref, writable=type == "general" and not ref.read_only)
        return Bench(sandbox, workspace, await self._specs(run.run_id, job), emit, self._faults)

    async def _open(self, run_id: str, ref: WorkspaceRef, *, writable: bool) -> Workspace:
        repository = await self._repositories.run_on(run_id, ref.repository)
        return await repository.workspace(
            ref.workspace_id, ref.tree, base_sha=ref.base_sha, writable=writable, hidden=list(ref.hidden)
        )

    async def _specs(self, run_id: str, job: CodingJob | None) -> MakeSpec:
        """How a session of this job's agents looks on a workspace."""
        if job is None:
            return lambda mount: SandboxSpec(workspace=mount)
        environment = await self._environment_of(run_id, job)
        return lambda mount: environment.sandbox_spec(mount, purpose="agent")
