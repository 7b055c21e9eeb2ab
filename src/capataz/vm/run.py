"""The kernel of one run: it holds the lease, performs effects, and decides when the run parks, stops or ends.

It is the run's one writer. Everything that it learns becomes a fact by ``committer``; whatever is killed and whenever,
a new kernel continues from the journal alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from capataz.contracts.canonical import JsonValue, digest, to_json
from capataz.contracts.errors import Cancelled, CapatazError, DeadlineExceeded, OrchestrationError, ProgramFailed
from capataz.contracts.journal import (
    FINAL_STATES,
    AccountRecord,
    AskRecord,
    Batch,
    EffectCompleted,
    EffectRow,
    InboxItem,
    Lease,
    NewEvent,
    RunRecord,
    RunUpdate,
)
from capataz.contracts.signals import LeaseLost, Signal
from capataz.vm import effects as performers
from capataz.vm import untrusted
from capataz.vm.accounts import Accounts
from capataz.vm.committer import Committer, Part
from capataz.vm.effect import Completion, Done, Effect
from capataz.vm.effects import control
from capataz.vm.effects.states import States, waits_of
from capataz.vm.fork import take_over
from capataz.vm.history import History
from capataz.vm.inbox import Inbox
from capataz.vm.instance import Instance
from capataz.vm.keys import agent_name
from capataz.vm.large import LargeValues
from capataz.vm.orphans import OrphanGate
from capataz.vm.pipe import ProcessDied
from capataz.vm.ports import Parking, Ports, process_source
from capataz.vm.running_time import read_stretches, running_time
from capataz.vm.seeds import origin

LEASE_S = 10.0
RESTARTS = 3  # of a program process that died by itself, before the run fails

Stop = Literal["drain", "pause", "cancel"]


class Run:
    """``await Run.open(...)``, then ``await run.drive()`` once."""

    def __init__(self, ports: Ports, lease: Lease, record: RunRecord, history: History, parking: Parking) -> None:
        self.ports = ports
        self.record = record
        self.history = history
        self.parking = parking
        self.zygote = process_source(ports, self.options)
        self.large = LargeValues(ports.blobs)
        self.committer = Committer(
            ports.journal, lease, last_event=record.last_event, now=ports.clock.now, faults=ports.faults
        )
        self.accounts = Accounts(self.emit, now=ports.clock.now, ran=self._ran)
        self._opened_at = ports.clock.now()
        self._ran_before: dict[float, float] = {}    # by an account's opening: running seconds until this worker came
        self.inbox = Inbox(self)
        self.states = States(self)
        self.orphans = OrphanGate(self)
        self.prices = ports.agents.prices(self.options)
        self.draining = False
        self.stop: Stop | None = None
        self.cancel_reason = ""
        self.instances: list[Instance] = []
        self.trees: dict[str, str] = {}        # workspace id -> its tree as last recorded
        self.asks: dict[str, AskRecord] = {}   # as they were when this worker took the run over
        self._writers: dict[str, asyncio.Lock] = {}
        self._own_waits: list[dict[str, Any]] = []   # of the run itself, not of one of its effects
        self.quiet_changed = asyncio.Event()   # for whoever puts questions to a person
        self._idle = asyncio.Event()
        self._stopped = asyncio.Event()

    # ---- opening -------------------------------------------------------------------------------

    @classmethod
    async def open(cls, ports: Ports, lease: Lease, parking: Parking) -> Run:
        record = await take_over(ports.journal, lease, await ports.journal.get_run(lease.run_id))
        record = replace(record, input=await LargeValues(ports.blobs).inward(record.input))
        run = cls(ports, lease, record, await _read_history(ports, record), parking)
        records = await ports.journal.accounts(lease.run_id)
        run.accounts.restore(records)
        await run._read_running_time(records)
        run.asks = {ask.ask_id: ask for ask in await ports.journal.asks(run_id=lease.run_id, open_only=False)}
        return run

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def seed(self) -> str:
        return origin(self.record)[0]

    @property
    def options(self) -> Mapping[str, Any]:
        return self.record.options or {}

    def now(self) -> float:
        return self.ports.clock.now()

    def open_account(self, account: str, limits: Mapping[str, Any]) -> None:
        self.committer.soon(Part(Batch(accounts=(self.accounts.limit(account, limits),))))

    async def renew(self) -> None:
        """Makes sure that the lease is still ours, right now. Raises ``LeaseLost``."""
        await self.ports.journal.renew(self.committer.lease, ttl_s=LEASE_S)

    def emit(self, type: str, effect: str | None, data: dict[str, Any]) -> None:
        """Journals an event with the next commit."""
        self.committer.soon(Part(events=((type, effect, to_json(data)),)))

    # ---- driving -------------------------------------------------------------------------------

    async def drive(self) -> RunRecord:
        """Carries the run on until it ends, parks or loses its lease (raises ``LeaseLost``)."""
        if self.record.state in FINAL_STATES:
            await self._clean_up()
            return self.record
        await self._begin()
        await self.inbox.read()  # what was said meanwhile holds before anything is performed
        inbox = asyncio.create_task(self.inbox.watch())
        try:
            await self._until_end()
        finally:
            inbox.cancel()
            await asyncio.gather(inbox, return_exceptions=True)
            self.committer.listeners.clear()
        return await self.ports.journal.get_run(self.run_id)

    async def _begin(self) -> None:
        first = self.record.started_at is None
        who = {"worker": self.committer.lease.holder.worker, "epoch": self.committer.lease.epoch}
        type = "run.started" if first else "run.resumed"
        data = who if first else {**who, "generation": self.record.generation}
        events: list[tuple[str, str | None, dict[str, Any]]] = []
        if self.record.last_event == 0:
            events.append(("run.created", None, {"program": self.record.program, "repository": self.record.repository}))
        events += [("lease.taken", None, who), (type, None, data)]
        started = self.now() if first else None
        update = RunUpdate(state="running", started_at=started, clear=("waiting", "ready_at"))
        limits = tuple(self._root_limits())
        await self.committer.durable(Part(Batch(run=update, accounts=limits), tuple(events)))

    def _root_limits(self) -> list[Any]:
        money = self.options.get("budget_usd")
        return [self.accounts.limit("", {"usd": money})] if money is not None else []

    async def _until_end(self) -> None:
        for attempt in range(RESTARTS):
            program = asyncio.create_task(self._program(), name=f"program {self.run_id}")
            watchers = [asyncio.create_task(self._watch_quiet()), asyncio.create_task(self._stopped.wait())]
            deadline = asyncio.create_task(self._deadline())
            try:
                await asyncio.wait([program, *watchers, deadline], return_when=asyncio.FIRST_COMPLETED)
                if not program.done():
                    await self._interrupt(program, deadline)
                    return
            finally:
                await self._stop_tasks([program, *watchers, deadline])
            error = program.exception() if not program.cancelled() else asyncio.CancelledError()
            if isinstance(error, ProcessDied) and attempt + 1 < RESTARTS:
                await self._reload()
                continue
            await self._finish(program, error)
            return

    async def _program(self) -> JsonValue:
        files = await self.ports.journal.get_source(self.record.source_digest)
        start = {
            "ref": self.options.get("ref") or self.record.program, "files": files, "input": self.record.input,
            "seed": self.seed, "now": origin(self.record)[1], "path": [],
        }
        result = await self.execute(Instance(self, parent=None, scope="", start=start))
        await self.orphans.pass_()
        return result

    async def execute(self, instance: Instance) -> JsonValue:
        """Runs a program (the run's own or a child) and ends what it left in flight."""
        self.instances.append(instance)
        try:
            return await instance.execute()
        finally:
            self.instances.remove(instance)
            await self._stop_tasks([e.task for e in instance.unfinished() if e.task is not None])

    async def _stop_tasks(self, tasks: list[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _reload(self) -> None:
        await self.committer.flush()
        self.history = await _read_history(self.ports, self.record)
        self.trees.clear()

    # ---- ends ----------------------------------------------------------------------------------

    async def _interrupt(self, program: asyncio.Task[JsonValue], deadline: asyncio.Task[None]) -> None:
        if deadline.done() and not deadline.cancelled():
            in_flight = self._in_flight()
            await self._stop_tasks([program])
            error = DeadlineExceeded("the run's time is over (--timeout)", run_id=self.run_id)
            await self._end(RunUpdate(state="failed", outcome="failed", reason=_reason(error)), in_flight)
        elif self.stop == "cancel":
            in_flight = self._in_flight()
            await self._stop_tasks([program])
            reason = _reason(Cancelled(self.cancel_reason or "cancelled"))
            await self._end(RunUpdate(state="cancelled", outcome="cancelled", reason=reason), in_flight)
        else:
            waiting = self._waiting()
            await self._stop_tasks([program])
            await self._park(waiting)

    def _in_flight(self) -> list[Effect]:
        return [effect for instance in self.instances for effect in instance.unfinished()]

    async def _finish(self, program: asyncio.Task[JsonValue], error: BaseException | None) -> None:
        if error is None:
            await self._end(await self._outcome(program.result()), [])
        elif isinstance(error, CapatazError):
            await self._end(RunUpdate(state="failed", outcome="failed", reason=_reason(error)), [])
        elif isinstance(error, ProcessDied):
            failed = ProgramFailed(f"the program's process died {RESTARTS} times without a word (killed, or out of memory)")
            await self._end(RunUpdate(state="failed", outcome="failed", reason=_reason(failed)), [])
        else:
            raise error

    async def _outcome(self, result: JsonValue) -> RunUpdate:
        """A coding program's outcome becomes the run's (``contracts.coding.CodingOutcome``); others just complete."""
        if isinstance(result, dict) and result.get("kind") == "coding_outcome":
            state: Any = "failed" if result["outcome"] == "failed" else "completed"
            kept = await self.large.outward(result.get("result"))
            return RunUpdate(state=state, outcome=result["outcome"], reason=result.get("reason"), result=kept)
        return RunUpdate(state="completed", result=await self.large.outward(result))

    async def _end(self, update: RunUpdate, cancelled: list[Effect]) -> None:
        self.ports.faults.reach("run.end.before")
        await self.committer.flush()
        at = self.now()
        rows = tuple(
            EffectCompleted(key=e.key, status="cancelled", delivery_no=None, error=_reason(Cancelled(self.cancel_reason)), ended_at=at)
            for e in cancelled
        )
        asks = await self.ports.journal.asks(run_id=self.run_id)
        closed = tuple((ask.ask_id, "cancelled") for ask in asks)
        timers = tuple(await self.ports.journal.timers(self.run_id))
        data = {"state": update.state, "outcome": update.outcome, "reason": update.reason}
        update = _with_end(update, at)
        inbox = self.inbox.taken()
        await self.committer.durable(
            Part(Batch(completed=rows, asks_closed=closed, inbox_done=inbox, timers_done=timers, run=update), (("run.ended", None, data),))
        )
        self.ports.faults.reach("run.end.after")
        await self._clean_up()

    async def _clean_up(self) -> None:
        self.ports.faults.reach("cleanup.before")
        await self.ports.coding.cleanup(self.run_id)
        self.ports.faults.reach("cleanup.after")

    async def _park(self, waiting: list[dict[str, Any]]) -> None:
        await self.committer.flush()
        due = [w["due"] for w in waiting if w.get("due") is not None and not self.draining]
        closed = await self._forsaken_asks(waiting)
        update = RunUpdate(
            state="parked", waiting=waiting, ready_at=min(due) if due else None, clear=() if due else ("ready_at",)
        )
        batch = Batch(run=update, asks_closed=closed, inbox_done=self.inbox.taken(), state_waits=waits_of(waiting))
        part = Part(batch, (("run.parked", None, {"waiting": waiting}),))
        await self.committer.durable(part)
        await self._clean_up()  # the trees are kept: whoever carries the run on makes its workspaces anew

    async def _forsaken_asks(self, waiting: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
        """Open questions that an edited program no longer waits for: an answer to them would be lost."""
        if self.record.generation == 0 or self.draining:
            return ()
        wanted = {w.get("ask") for w in waiting}
        found = await self.ports.journal.asks(run_id=self.run_id)
        return tuple((ask.ask_id, "cancelled") for ask in found if ask.ask_id not in wanted)

    def _waiting(self) -> list[dict[str, Any]]:
        if self.draining:
            return [{"on": "paused"}]
        return self._waits()

    def _waits(self) -> list[dict[str, Any]]:
        return [dict(e.waiting) for e in self._in_flight() if e.waiting is not None] + self._own_waits

    @contextmanager
    def waiting_for(self, wait: dict[str, Any], effect: Effect | None) -> Iterator[None]:
        """Something durable is waited for, by an effect or by the run itself."""
        if effect is not None:
            effect.waiting = wait
        else:
            self._own_waits.append(wait)
        self.note_idle()
        try:
            yield
        finally:
            if effect is not None:
                effect.waiting = None
            else:
                self._own_waits.remove(wait)

    # ---- parking -------------------------------------------------------------------------------

    def note_idle(self) -> None:
        """Something became quiet: look whether the whole run is."""
        self._idle.set()
        self.quiet_changed.set()

    def waiting_asks(self) -> list[str]:
        """Ids of the questions that effects in flight wait for."""
        return [w["ask"] for w in self._waits() if w["on"] == "asks"]

    def park_on_asks(self) -> None:
        """The person at the terminal leaves the question open."""
        self.parking = replace(self.parking, asks=True)
        self.note_idle()

    async def _watch_quiet(self) -> None:
        """Returns when the run should park."""
        while True:
            await self._idle.wait()
            self._idle.clear()
            if self._quiet() and self._should_park():
                await asyncio.sleep(self.parking.grace_s)
                if self._quiet() and self._should_park():
                    return

    def _quiet(self) -> bool:
        if not (self.instances or self._own_waits) or not all(instance.quiet for instance in self.instances):
            return False
        return all(e.waiting is not None or e.suspended or e.kind == "child" for e in self._in_flight())

    def _should_park(self) -> bool:
        if self.draining:
            return True
        waits = self._waits()
        if not waits:
            return False
        if any(w["on"] in ("asks", "message") and "doubt" not in w for w in waits):
            return self.parking.asks
        if any(w["on"] in ("paused", "budget") or "doubt" in w for w in waits):
            return True  # only another process can end this wait
        if not self.parking.asks and any(w["on"] == "state" for w in waits):
            return False  # somebody watches at the terminal: stay with the run
        due = min((w["due"] for w in waits if w.get("due") is not None), default=None)
        return due is None or due - self.now() > self.parking.sleeps_over_s

    # ---- from outside --------------------------------------------------------------------------

    def request_stop(self, how: Stop, reason: str = "") -> None:
        """``drain`` and ``pause``: park at the next safe point; ``cancel``: now."""
        if how == "cancel":
            self.stop, self.cancel_reason = "cancel", reason
            self._stopped.set()
            return
        self.draining = True
        self.stop = how
        self._idle.set()
        for effect in self._in_flight():
            if effect.waiting is not None:
                self._idle.set()

    def lose(self, lost: LeaseLost) -> None:
        """The lease is gone: nothing may be written any more, and everything in flight stops."""
        self.committer.poison(lost)
        self._stopped.set()

    async def _deadline(self) -> None:
        """Ends when the run's running time is used up; waits for people do not count."""
        limit = self.options.get("timeout_s")
        if limit is None:
            await asyncio.Event().wait()
        spent = await self._time_spent()
        await self.ports.clock.sleep(max(0.0, float(limit) - spent))  # type: ignore[arg-type]

    async def _time_spent(self) -> float:
        return running_time(await read_stretches(self.ports.journal, self.run_id), since=0.0, until=self._opened_at)

    async def _read_running_time(self, records: list[AccountRecord]) -> None:
        opened = {since for r in records if isinstance(r.limits, dict) and (since := r.limits.get("since")) is not None}
        if opened:
            stretches = await read_stretches(self.ports.journal, self.run_id)
            self._ran_before = {since: running_time(stretches, since=since, until=self._opened_at) for since in opened}

    def _ran(self, since: float) -> float:
        return self._ran_before.get(since, 0.0) + self.now() - max(since, self._opened_at)

    async def take(self, items: list[InboxItem]) -> None:
        """Inbox items for the run itself; those for agents wait in ``inbox`` until their next model call."""
        for item in items:
            if item.kind == "cancel":
                self.request_stop("cancel", str(item.body or ""))
            elif item.kind == "pause" and item.target is None:
                self.request_stop("pause", str(item.body or ""))
            elif item.kind in ("pause", "resume") and item.target is not None:
                self._hold(item.target, item.kind == "pause")
            elif item.kind == "topup":
                given = item.body if isinstance(item.body, dict) else {"usd": item.body}
                raised = await self.accounts.topup(given.get("account") or "", given)
                self.committer.soon(Part(Batch(accounts=(raised,), inbox_done=(item.seq,))))

    def _hold(self, agent: str, hold: bool) -> None:
        """Holds an agent before its next model or tool call, or lets it go on."""
        for effect in self._in_flight():
            if effect.kind == "agent" and agent_name(effect.scope, effect.name) == agent:
                effect.paused.clear() if hold else effect.paused.set()

    def writing(self, workspace_id: str) -> asyncio.Lock:
        """A workspace has one writer at a time: the next waits until a cancelled one has really stopped."""
        return self._writers.setdefault(workspace_id, asyncio.Lock())

    # ---- effects -------------------------------------------------------------------------------

    def inputs_of(self, kind: str, input: JsonValue) -> JsonValue:
        """What identifies an effect: what the program gave, and what the runtime adds (model, tools, trees)."""
        add = performers.IDENTITY.get(kind)
        return input if add is None else add(self, input)

    async def kept_input(self, effect: Effect) -> JsonValue:
        return await self.large.outward(performers.kept_input(self, effect))

    def child_source(self, effect: Effect) -> str:
        """Digest of the sources that a child program runs from."""
        files = effect.args.get("files")
        return digest(files) if files else self.record.source_digest

    async def reusable(self, effect: Effect) -> EffectRow | None:
        """The earlier result that the effect takes over. A child's only while its sources are the same: else it is entered
        again, and its own effects keep theirs."""
        row = self.history.reusable.get(effect.key)
        if row is None or effect.kind != "child":
            return row
        kept = await self.large.inward(row.input)
        return row if isinstance(kept, dict) and kept.get("source") == self.child_source(effect) else None

    def start_tree(self, effect: Effect) -> str | None:
        workspace = _workspace_id(effect)
        return self.trees.get(workspace) if workspace is not None else None

    def inline(self, effect: Effect) -> Completion | None:
        """The end of an effect that needs nobody: it is journaled together with its request."""
        perform = performers.INLINE.get(effect.kind)
        if perform is None:
            return None
        try:
            return Completion(effect, "ok", self.now(), perform(self, effect))
        except CapatazError as error:
            return Completion(effect, "error", self.now(), error=self.locate(error, effect))

    def request_part(self, effect: Effect) -> Part | None:
        add = performers.AT_REQUEST.get(effect.kind)
        return None if add is None else add(self, effect)

    def completion_part(self, completion: Completion) -> Part | None:
        add = performers.AT_COMPLETION.get(completion.effect.kind)
        return None if add is None else add(self, completion)

    def observe(self, effect: Effect, tree: str | None, value: JsonValue) -> None:
        """Keeps what later identities depend on: the tree of each workspace."""
        if effect.kind == "control":
            control.apply(self, effect)
        elif effect.kind == "epoch":
            self.trees.update(value.get("trees") or {})
        elif effect.kind == "coding.workspace" and isinstance(value, dict):
            self.trees[value["workspace_id"]] = value["tree"]
        workspace = _workspace_id(effect)
        if tree is not None and workspace is not None:
            self.trees[workspace] = tree

    async def perform(self, effect: Effect) -> Completion | None:
        """None: stopped by a signal (drain, lost lease); the effect goes on at the next resume."""
        try:
            done = await self._perform_within(effect)
            return Completion(effect, "ok", self.now(), done, repeated=effect.repeated)
        except asyncio.CancelledError:
            if effect.cancelled is None:
                raise
            return effect.instance.cancelled(effect)
        except LeaseLost as lost:
            self.lose(lost)
            return None
        except Signal:
            return None
        except ProcessDied:
            return None  # its instance sees the same and starts again
        except CapatazError as error:
            return Completion(effect, "error", self.now(), error=self.locate(error, effect))
        except Exception as error:
            broken = OrchestrationError(f"{effect.kind} {effect.name}: {type(error).__name__}: {error}", internal=True)
            self.report_bug(error)
            return Completion(effect, "error", self.now(), error=self.locate(broken, effect))

    async def _perform_within(self, effect: Effect) -> Done:
        untrusted.refuse(effect, self.options)
        perform = performers.performer(effect.kind)
        within = effect.args.get("within_s")
        if within is None or effect.kind in performers.OWN_DEADLINE:
            return await perform(self, effect)
        left = effect.started_at + float(within) - self.now()
        try:
            async with asyncio.timeout(max(left, 0)):
                return await perform(self, effect)
        except TimeoutError:
            raise DeadlineExceeded(f"{effect.kind} {effect.name} did not end within {within:g} s") from None

    def locate(self, error: CapatazError, effect: Effect) -> CapatazError:
        error.run_id = error.run_id or self.run_id
        error.effect = error.effect or effect.key
        return error

    def report_bug(self, error: BaseException) -> None:
        """An exception that is no ``CapatazError`` is ours: keep its traceback where an operator finds it."""
        asyncio.get_running_loop().call_exception_handler({"message": "internal error", "exception": error})

    def add_listener(self, listener: Callable[[NewEvent], None]) -> None:
        self.committer.listeners.append(listener)


async def _read_history(ports: Ports, record: RunRecord) -> History:
    rows = await ports.journal.effects(record.run_id, generation=record.generation)
    earlier: list[EffectRow] = []
    for generation in range(record.generation):
        earlier += await ports.journal.effects(record.run_id, generation=generation)
    return History(rows, earlier)


def _workspace_id(effect: Effect) -> str | None:
    workspace = effect.input.get("workspace") if isinstance(effect.input, dict) else None
    return workspace.get("workspace_id") if isinstance(workspace, dict) else None


def _reason(error: CapatazError) -> JsonValue:
    return {"code": error.code, "message": error.message, "round": error.details.get("round"), "task": error.details.get("task")}


def _with_end(update: RunUpdate, at: float) -> RunUpdate:
    return replace(update, ended_at=at, clear=("waiting", "ready_at"))
