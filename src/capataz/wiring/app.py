"""The application: what the command line and the service ask for, done with the parts (``cli.app_port.App``)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import JsonValue, to_json
from capataz.contracts.coding import CodingJob, JobOptions
from capataz.contracts.errors import CapatazError, NotFound, RunNotResumable, UsageError
from capataz.contracts.ids import new_run_id
from capataz.contracts.jobs import DoRequest, ProgramRequest
from capataz.contracts.journal import FINAL_STATES, AskRecord, Batch, EffectRow, Journal, NewEvent, NewRun, RunRecord, RunUpdate
from capataz.contracts.records import Candidate
from capataz.vm.effects.people import check_answer
from capataz.vm.holder import this_process
from capataz.vm.keys import agent_name
from capataz.vm.large import LargeValues
from capataz.vm.ports import Parking, Ports, process_source
from capataz.vm.worker import Worker
from capataz.wiring.agents import Agents
from capataz.wiring.collector import collect_rarely
from capataz.wiring.config import load_config
from capataz.wiring.isolation import ConfinedPrograms, busy_limit_s, is_written_by_model
from capataz.wiring.parts import Harnesses, Parts, open_parts, step_environment
from capataz.wiring.summary import summarise

OnEvent = Callable[[NewEvent], None]
AskPerson = Callable[[AskRecord], Awaitable[JsonValue]]
CANCEL_WAIT_S = 60.0


class LazyZygote:
    """The warm parent of program processes, started when the first program runs."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._zygote: Any = None
        self._starting = asyncio.Lock()

    async def warm(self) -> Any:
        """Starts it: it gets ready by itself while its first program is looked up."""
        async with self._starting:
            if self._zygote is None:
                from capataz.vm.zygote import Zygote

                self._zygote = await Zygote.start()
                self._stack.push_async_callback(self._zygote.close)
        return self._zygote

    async def spawn(self) -> Any:
        return await (await self.warm()).spawn()


class App:
    def __init__(self, parts: Parts, stack: AsyncExitStack) -> None:
        self._parts = parts
        self._large = LargeValues(parts.blobs)
        self._zygote = LazyZygote(stack)
        self._agents = Agents(
            models=parts.models.of, harnesses=Harnesses(parts.config.settings.get("commands"), parts.clock),
            repositories=parts.repositories, sandbox_for=parts.sandboxes.of, environment_of=parts.evidence.environment,
            faults=parts.faults,
        )
        self._ports = Ports(
            journal=parts.journal, blobs=parts.blobs, clock=parts.clock, faults=parts.faults, agents=self._agents,
            coding=parts.evidence, zygote=self._zygote, holder=this_process(),
            step_env=lambda: step_environment(parts.models.installed), confined=ConfinedPrograms(parts.config),
            busy_s=busy_limit_s(parts.config),
        )
        self._worker = Worker(self._ports)
        stack.push_async_callback(self._worker.close)

    @property
    def home(self) -> Path:
        return self._parts.config.home

    @property
    def journal(self) -> Journal:
        return self._parts.journal

    @property
    def blobs(self) -> Blobs:
        return self._parts.blobs

    def _now(self) -> float:
        return self._parts.clock.now()

    # ---- starting ------------------------------------------------------------------------------

    async def start_do(self, request: DoRequest) -> str:
        from capataz.evidence.job import prepare_job
        from capataz.programs import prompting

        await self._zygote.warm()
        ref, source, files = await self._program(request.program)
        options = JobOptions(
            max_rounds=request.max_rounds, max_workers=request.max_workers, approval=request.approval, model=request.model,
            max_turns=request.max_turns, sandbox=request.sandbox, trust_repository=request.trust_repository,
        )
        run_id = new_run_id()
        if not await self._parts.sandboxes.overlays(options):
            await self._parts.repositories.use_copies(run_id)
        job = await prepare_job(
            self._parts.repositories, run_id, repo=request.repository, request=request.request, criteria=list(request.criteria),
            base=request.base, target=request.target, policy_file=request.policy, options=options,
        )
        job = job.model_copy(update={"prompts": prompting.resolve({**self._prompts(), **job.policy.prompts})})
        await self._check_input(ref, files, to_json(job))
        stored = {**_limits(request), **_tables(job), "command_timeout_s": job.policy.limits.command_timeout}
        stored["model"] = self._model(request.model, stored)
        await self._store(run_id, request.program, ref, source, files, to_json(job), stored, job.request.repository)
        return run_id

    async def start_program(self, request: ProgramRequest) -> str:
        await self._zygote.warm()
        ref, source, files = await self._program(request.program)
        stored = {**_limits(request), "model": self._model(request.model, {}) if request.model else None}
        if request.untrusted or is_written_by_model(self.home, request.program):
            stored["untrusted"] = True
        await self._check_input(ref, files, request.input, stored)
        run_id = new_run_id()
        await self._store(run_id, request.program, ref, source, files, request.input, stored, None)
        return run_id

    async def _check_input(self, ref: str, files: dict[str, str], input: JsonValue, options: Mapping[str, Any] | None = None) -> None:
        """Loads the program in a process of its own and asks whether it takes this input. Raises ``ProgramLoadError``."""
        from capataz.vm.zygote import describe

        await describe(ref, files, process_source(self._ports, options or {}), input=input)

    def _prompts(self) -> dict[str, str]:
        """``[prompts]`` of the person's own configuration."""
        return self._parts.config.settings.get("prompts", {})

    def _model(self, name: str | None, tables: Mapping[str, Any]) -> str:
        """The full id of a model that can be used. Raises ``UsageError``, ``ProviderRejected``."""
        models = self._parts.models.of(tables)
        model = models.resolve(name)
        models.check(model)
        return model

    async def _program(self, name: str) -> tuple[str, str, dict[str, str]]:
        """The program's ``module:name``, the digest of its sources, and these."""
        from capataz.vm.closure import find

        found = await asyncio.to_thread(find, name)
        return found.ref, found.digest, found.files

    async def _store(
        self, run_id: str, shown: str, ref: str, source: str, files: dict[str, str], input: JsonValue, options: dict[str, Any],
        repository: str | None,
    ) -> None:
        await self.journal.put_source(source, files)
        await self.journal.create_run(NewRun(
            run_id=run_id, program=shown, source_digest=source, input=await self._large.outward(input),
            options={**options, "ref": ref}, created_at=self._now(), repository=repository,
        ))

    async def start_rebase(self, run_id: str) -> str:
        from capataz.contracts.coding import RebaseInput

        run = await self.journal.get_run(run_id)
        job = self._agents.job(replace(run, input=await self._large.inward(run.input)))
        candidate = await self._candidate(run_id)
        if job is None or candidate is None:
            raise RunNotResumable(f"run {run_id} has no candidate that could move; start the request again with `capataz do`")
        if run.state not in FINAL_STATES:
            raise RunNotResumable(f"run {run_id} is {run.state}; answer or cancel it first")
        ref, source, files = await self._program("rebase")
        new_id = new_run_id()
        await self._parts.repositories.copy_run(run_id, new_id)
        given = RebaseInput(job=job, candidate=candidate)
        options = {k: v for k, v in run.options.items() if k != "ref"}
        await self._store(new_id, "rebase", ref, source, files, to_json(given), options, run.repository)
        return new_id

    async def _candidate(self, run_id: str) -> Candidate | None:
        """The run's last candidate."""
        rows = [r for r in await self.journal.effects(run_id) if r.kind == "coding.compose" and r.status == "ok"]
        return Candidate.model_validate(await self._large.inward(rows[-1].result)) if rows else None

    # ---- driving -------------------------------------------------------------------------------

    async def drive(self, run_id: str, *, on_event: OnEvent | None = None, ask: AskPerson | None = None) -> RunRecord:
        parking = Parking(asks=ask is None)
        await self._zygote.warm()
        try:
            return await self._worker.drive(run_id, parking=parking, on_event=on_event, ask=_named(ask) if ask is not None else None)
        finally:
            self._agents.forget(run_id)

    async def detach(self, run_id: str) -> None:
        """Starts ``capataz resume`` in a session of its own; its words go to a log in the home."""
        logs = self.home / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{run_id}.log").open("ab") as log:
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "capataz.cli.main", "resume", run_id,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )

    async def held(self, run_id: str) -> bool:
        return await self._worker.held_by_other(run_id)

    def request_drain(self) -> None:
        self._worker.request_drain()

    # ---- looking -------------------------------------------------------------------------------

    async def summary(self, run_id: str) -> dict[str, Any]:
        run = await self.journal.get_run(run_id)
        rows = [
            replace(row, result=await self._large.inward(row.result), input=await self._large.inward(row.input))
            for row in await self.journal.effects(run_id) if row.parent is None or row.kind == "model"
        ]
        asks = await self.journal.asks(run_id=run_id, open_only=False)
        lost = await self._orphans(run)
        run = replace(run, result=await self._large.inward(run.result))
        return summarise(
            run, rows, asks, await self.journal.usage(run_id), now=self._now(), sandbox=await self._sandbox_of(run_id),
            orphans=lost,
        )

    async def effects(self, run_id: str) -> list[EffectRow]:
        """All effects of the run's newest generation, large values fetched. Raises ``NotFound``."""
        run = await self.journal.get_run(run_id)
        return [
            replace(row, result=await self._large.inward(row.result), input=await self._large.inward(row.input))
            for row in await self.journal.effects(run.run_id)
        ]

    async def usage_by(self, run_id: str) -> dict[str, Any]:
        from capataz.wiring.usage import usage_by

        run = await self.journal.get_run(run_id)
        return usage_by([row for n in range(run.generation + 1) for row in await self.journal.effects(run.run_id, generation=n)])

    async def _orphans(self, run: RunRecord) -> list[str]:
        """Keys of results that the edited program no longer asks for; none while it may still ask."""
        from capataz.vm.orphans import orphans, to_show

        if run.generation == 0:
            return []
        rows = await self.journal.effects(run.run_id)
        if not to_show(run, rows):
            return []
        earlier = [row for n in range(run.generation) for row in await self.journal.effects(run.run_id, generation=n)]
        return [row.key for row in await orphans(rows, earlier, self._large)]

    async def plan(self, run_id: str, *, with_file: str | None) -> dict[str, Any]:
        from capataz.vm.edits import find_edited
        from capataz.vm.plan import make_plan

        run = await self.journal.get_run(run_id)
        if with_file is None:
            files = await self.journal.get_source(run.source_digest)
            ref, source = str(run.options["ref"]), run.source_digest
        else:
            found = await asyncio.to_thread(find_edited, with_file, str(run.options["ref"]))
            files, ref, source = found.files, found.ref, found.digest
        await self._check_input(ref, files, await self._large.inward(run.input), run.options)
        made = await make_plan(self._ports, run, files, ref=ref, source_digest=source)
        return {**made, "with": with_file}

    async def _sandbox_of(self, run_id: str) -> dict[str, Any] | None:
        found, after = None, 0
        while events := await self.journal.events(run_id, after=after):
            found = next((e.data for e in reversed(events) if e.type == "sandbox.started"), found)
            after = events[-1].seq
        return found

    # ---- steering ------------------------------------------------------------------------------

    async def answer(self, ask_id: str, value: JsonValue, *, by: str, channel: str, note: str | None) -> AskRecord:
        ask = await self.journal.get_ask(ask_id)
        if ask.approvers and by not in ask.approvers:
            raise UsageError(f"{by} is not among the approvers of {ask_id}: {', '.join(ask.approvers)}")
        checked = check_answer(ask.kind, ask.options, value, ask.schema)
        return await self.journal.answer(ask_id, checked, by=by, channel=channel, at=self._now(), note=note)

    async def cancel(self, run_id: str, *, reason: str) -> RunRecord:
        run = await self.journal.get_run(run_id)
        if run.state in FINAL_STATES:
            raise RunNotResumable(f"run {run_id} is over already ({run.outcome or run.state})")
        await self._post(run_id, "cancel", reason, None)
        if not await self.held(run_id):
            return await self.drive(run_id)
        for _ in range(int(CANCEL_WAIT_S / 0.1)):
            await asyncio.sleep(0.1)
            run = await self.journal.get_run(run_id)
            if run.state in FINAL_STATES:
                return run
            if not await self.held(run_id):
                return await self.drive(run_id)
        return run

    async def post_cancel(self, run_id: str, *, reason: str) -> None:
        """Asks whoever carries the run on to cancel it; waits for nothing. Raises ``RunNotResumable`` for one that is over."""
        await self._post(run_id, "cancel", reason, None)

    async def resolve(self, run_id: str, key: str, decision: dict[str, Any]) -> None:
        """Raises ``NotFound`` when nothing of the run is in doubt under this key."""
        run = await self.journal.get_run(run_id)
        doubts = {str(w["key"]) for w in run.waiting or [] if "doubt" in w}
        if key not in doubts and not await self._under_way(run_id, key):
            known = f"; in doubt are: {', '.join(sorted(doubts))}" if doubts else ""
            raise NotFound(f"run {run_id} has no effect in doubt with the key {key!r}{known}")
        await self._post(run_id, "resolve", decision, key)

    async def _under_way(self, run_id: str, key: str) -> bool:
        """A step that is not finished and must not be repeated unasked: it is in doubt as soon as the run goes on."""
        rows = await self.journal.effects(run_id)
        found = next((row for row in rows if row.key == key and row.kind == "step" and row.status == "requested"), None)
        return found is not None and bool(found.input) and (await self._large.inward(found.input)).get("idempotent") is False

    async def topup(self, run_id: str, amounts: dict[str, str], *, scope: str | None) -> str:
        """Raises the limits of the account that the run waits for (else of the run's own, or of ``scope``); gives its name.
        A run that failed because its budget was used up can go on, too."""
        run = await self.journal.get_run(run_id)
        waiting = [w for w in run.waiting or [] if w.get("on") == "budget"]
        account = scope if scope is not None else str(waiting[0].get("account") or "") if waiting else ""
        if run.state in FINAL_STATES and (run.reason or {}).get("code") != "budget_exhausted":
            raise RunNotResumable(f"run {run_id} is over ({run.outcome or run.state}); there is nothing to pay for")
        body = {"account": account, **amounts}
        await self.journal.post(run_id, "topup", body, target=None, sender=user_name(), at=self._now())
        return account

    async def fork(self, run_id: str, key: str) -> str:
        from capataz.vm.fork import find_row, forked_run

        parent = await self.journal.get_run(run_id)
        at = find_row(await self.journal.effects(run_id), key)
        forked = new_run_id()
        await self._parts.repositories.copy_run(run_id, forked)
        await self.journal.create_run(forked_run(parent, at, run_id=forked, now=self._now()))
        return forked

    async def pause(self, run_id: str, *, agent: str | None) -> None:
        await self._post(run_id, "pause", None, agent)

    async def notify(self, run_id: str, text: str, *, agent: str | None) -> None:
        await self._post(run_id, "message", text, agent)

    async def _post(self, run_id: str, kind: str, body: JsonValue, target: str | None) -> None:
        run = await self.journal.get_run(run_id)
        if run.state in FINAL_STATES:
            raise RunNotResumable(f"run {run_id} is over ({run.outcome or run.state}); nobody would read this")
        if target is not None and kind in {"message", "pause"}:
            self._check_agent(run_id, target, await self.journal.effects(run_id))
        await self.journal.post(run_id, kind, body, target=target, sender=user_name(), at=self._now())

    @staticmethod
    def _check_agent(run_id: str, name: str, rows: Sequence[EffectRow]) -> None:
        """Raises ``NotFound`` unless an agent of this name is at work."""
        agents = {agent_name(row.scope, row.name): row.status for row in rows if row.kind == "agent"}
        if agents.get(name) == "requested":
            return
        at_work = ", ".join(agent for agent, status in agents.items() if status == "requested") or "none"
        what = f"agent {name!r} of run {run_id} has ended" if name in agents else f"run {run_id} has no agent {name!r}"
        raise NotFound(f"{what}; at work: {at_work}")

    # ---- resuming ------------------------------------------------------------------------------

    async def differs(self, run_id: str) -> str | None:
        run = await self.journal.get_run(run_id)
        file = run.program if run.program.endswith(".py") else run.program.rpartition(":")[0]
        if not file.endswith(".py"):
            return None
        try:
            _, source, _ = await self._program(run.program)
        except CapatazError:
            return None
        return None if source == run.source_digest else file

    async def prepare_resume(self, run_id: str, *, with_file: Path | None, accept_orphans: bool = False) -> None:
        run = await self.journal.get_run(run_id)
        if accept_orphans and await self._accept_asked(run):
            accept_orphans = False
        if with_file is None and run.state in FINAL_STATES and run.outcome not in ("failed", "cancelled"):
            if run.state in ("failed", "cancelled"):
                await self._new_generation(run, RunUpdate(), accept_orphans)
            return  # finished: driving it only removes what a crash left behind
        if with_file is not None:
            await self._new_generation(run, await self._edited(run, str(with_file)), accept_orphans)
        elif run.state in FINAL_STATES:
            await self._new_generation(run, RunUpdate(), accept_orphans)
        elif run.state == "parked" and any(w.get("on") == "paused" for w in run.waiting or []):
            await self.journal.post(run_id, "resume", None, target=None, sender=user_name(), at=self._now())

    async def _accept_asked(self, run: RunRecord) -> bool:
        """Answers the open question about orphans, if that is what the run waits for."""
        asked = next((w for w in run.waiting or [] if w.get("orphans")), None)
        if asked is None:
            return False
        await self.journal.answer(str(asked["ask"]), "approve", by=user_name(), channel="cli", at=self._now())
        return True

    async def _edited(self, run: RunRecord, file: str) -> RunUpdate:
        from capataz.vm.edits import find_edited

        found = await asyncio.to_thread(find_edited, file, str(run.options["ref"]))
        await self._check_input(found.ref, found.files, await self._large.inward(run.input), run.options)
        await self.journal.put_source(found.digest, found.files)
        return RunUpdate(source_digest=found.digest, options={**run.options, "ref": found.ref})

    async def _new_generation(self, run: RunRecord, update: RunUpdate, accept_orphans: bool) -> None:
        """Results of effects whose inputs did not change are kept; errors and cancelled effects are done again."""
        lease = await self._worker.claim(run.run_id)
        clear = ("outcome", "reason", "result", "ended_at", "waiting", "ready_at")
        opened = replace(update, generation=run.generation + 1, state="queued", clear=clear)
        if accept_orphans:
            opened = replace(opened, options={**(update.options or run.options), "accept_orphans": run.generation + 1})
        try:
            await self.journal.commit(lease, Batch(run=opened))
        finally:
            await self.journal.release(lease)

    async def gc(self) -> dict[str, Any]:
        from capataz.wiring.cleaning import collect

        return await collect(self._parts)


def _limits(request: DoRequest | ProgramRequest) -> dict[str, Any]:
    budget = str(request.budget_usd) if request.budget_usd is not None else None
    return {"max_turns": request.max_turns, "timeout_s": request.timeout_s, "budget_usd": budget, "cwd": _here()}


def _here() -> str | None:
    """The folder that steps run in, also after a resume from elsewhere."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _tables(job: CodingJob) -> dict[str, Any]:
    """The policy's ``[models]``, with whether a person gave them from outside the repository."""
    return {"models": job.policy.models, "models_trusted": job.policy.source == "file"} if job.policy.models else {}


def _named(ask: AskPerson) -> Callable[[AskRecord], Awaitable[tuple[JsonValue, str] | None]]:
    """The terminal's answer with the name of whoever sits there."""

    async def asked(record: AskRecord) -> tuple[JsonValue, str] | None:
        value = await ask(record)
        return None if value is None else (value, user_name())

    return asked


def user_name() -> str:
    """Who acts, as far as the system knows."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


@asynccontextmanager
async def open_app(*, home: Path | None = None) -> AsyncIterator[App]:
    collect_rarely()
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(open_parts(load_config(home)))
        yield App(parts, stack)



def open_database(*, home: Path | None = None) -> Any:
    """``capataz db``: works without an app."""
    from capataz.wiring.database import Database

    return Database(load_config(home))


async def doctor(*, home: Path | None = None) -> dict[str, Any]:
    from capataz.wiring import doctor as room

    return await room.doctor(home=home)


async def programs() -> list[dict[str, Any]]:
    from capataz.wiring import catalogue

    return await catalogue.programs()


async def models() -> list[dict[str, Any]]:
    from capataz.wiring import catalogue

    return await catalogue.models()


async def prompts() -> list[dict[str, Any]]:
    from capataz.wiring import catalogue

    return await catalogue.prompts()


async def crashtest(
    program: str, input: JsonValue, model: str | None, max_points: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    from capataz.wiring import crashtest as room

    return await room.crashtest(
        room.CrashtestRequest(program=program, input=input, model=model, max_points=max_points, seed=seed), say=say
    )
