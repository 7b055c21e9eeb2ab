"""A kernel on the real journal whose agents are instant: what remains is the price of the journal itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.clock import SystemClock
from capataz.contracts.faults import NoFaults
from capataz.contracts.harness import AgentOutcome, AgentPorts, AgentTask
from capataz.contracts.ids import new_run_id
from capataz.contracts.journal import Journal, NewRun, RunRecord
from capataz.store.store import open_store
from capataz.testing.fake_agents import FakeAgents
from capataz.testing.lab import NoCoding
from capataz.vm.closure import find
from capataz.vm.holder import this_process
from capataz.vm.ports import Parking, Ports
from capataz.vm.worker import Worker
from capataz.wiring.app import LazyZygote
from capataz.wiring.collector import collect_rarely

PROGRAMS = Path(__file__).parent / "programs"


class InstantHarness:
    """An agent that needs no model call: one effect. ``seen`` is told its name first."""

    name = "instant"

    def __init__(self, seen: Callable[[str], Awaitable[None]] | None = None) -> None:
        self._seen = seen

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        if self._seen is not None:
            await self._seen(task.name)
        return AgentOutcome(text="done", output=None, turns=0, messages=[])


@dataclass(frozen=True, slots=True)
class Bench:
    worker: Worker
    journal: Journal
    zygote: LazyZygote

    async def start(self, file: str, name: str, input: Any) -> str:
        """Stores a run of one of the bench's programs."""
        source = find(f"{PROGRAMS / file}:{name}")
        run_id = new_run_id()
        await self.journal.put_source(source.digest, source.files)
        await self.journal.create_run(NewRun(
            run_id=run_id, program=name, source_digest=source.digest, input=input, options={"ref": source.ref},
            created_at=SystemClock().now(),
        ))
        return run_id

    async def drive(self, run_id: str) -> RunRecord:
        await self.zygote.warm()
        run = await self.worker.drive(run_id, parking=Parking())
        assert run.state == "completed", run.reason
        return run


@asynccontextmanager
async def open_bench(home: str, url: str, harness: InstantHarness) -> AsyncIterator[Bench]:
    collect_rarely()
    async with AsyncExitStack() as stack:
        zygote = LazyZygote(stack)
        store = await open_store(Path(home), url)
        stack.push_async_callback(store.close)
        ports = Ports(
            journal=store.journal, blobs=store.blobs, clock=SystemClock(), faults=NoFaults(), agents=FakeAgents(harness),
            coding=NoCoding(), zygote=zygote, holder=this_process(), step_env=dict,  # type: ignore[arg-type]
        )
        worker = Worker(ports)
        stack.push_async_callback(worker.close)
        yield Bench(worker, store.journal, zygote)
