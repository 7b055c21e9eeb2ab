"""What a running agent gets from the kernel: each model and tool call is a sub-effect of its own.

An agent that is started again after a crash (or in a new generation) gets its recorded answers back one by one and
continues at the first call that is missing, on the files that the last finished tool call left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.coding import Refusal
from capataz.contracts.errors import CapatazError, OutputInvalid, error_from_json
from capataz.contracts.harness import AgentLimits, ModelReply, StateView, ToolReply
from capataz.contracts.journal import Batch, EffectCompleted, EffectRequested, EffectRow, EffectStatus, NewAsk, Usage
from capataz.contracts.runtime import Workbench
from capataz.contracts.sandbox import Mount, Session
from capataz.contracts.signals import Drained
from capataz.vm.agent_states import AgentStates, present_call
from capataz.vm.agent_tools import AgentTools
from capataz.vm.booking import Booking
from capataz.vm.committer import Part
from capataz.vm.effect import Effect
from capataz.vm.effects import coding, people
from capataz.vm.inbox import Note
from capataz.vm.keys import agent_name, sub_key

if TYPE_CHECKING:
    from capataz.vm.run import Run

ARGUMENT_SHOWN = 400


@dataclass(frozen=True, slots=True)
class _Sub:
    """One sub-effect: its key parts and what the journal says of it."""

    key: str
    kind: str
    name: str
    input_digest: str
    repeated: bool
    started_at: float


class JournaledPorts:
    """``contracts.harness.AgentPorts`` over the journal. ``tree``: the workspace's tree as last recorded."""

    def __init__(self, run: Run, effect: Effect, bench: Workbench, *, model: str, booking: Booking) -> None:
        self.usage = Usage()
        self.turns = 0
        self._run = run
        self._effect = effect
        self._bench = bench
        self._model = model
        self._booking = booking
        self._name = self.name = agent_name(effect.scope, effect.name)
        workspace = effect.input.get("workspace")
        self._start_tree: str | None = None
        if workspace is not None:
            self._start_tree = run.trees.get(workspace["workspace_id"], workspace["tree"])
        self.tree = self._start_tree
        self._prepared = False
        self._preparing = asyncio.Lock()
        self.artifact_bytes = 0
        self._refusals: dict[str, int] = {}
        self._told: set[str] = set()
        self._states = AgentStates(run, effect)
        self._tools = AgentTools(run, effect, self)

    # ---- sub-effects ---------------------------------------------------------------------------

    async def _safe_point(self) -> None:
        """Between sub-effects an agent may be stopped or held without losing anything."""
        if not self._effect.paused.is_set():
            self._effect.waiting = {"on": "paused", "agent": self._name}
            self._run.note_idle()
            try:
                await self._effect.paused.wait()
            finally:
                self._effect.waiting = None
        if self._run.draining:
            raise Drained("the worker is told to stop")

    async def _sub(self, kind: str, name: str, input: JsonValue) -> tuple[_Sub, EffectRow | None]:
        """The sub-effect and, when its outcome stands, its row (taken over into this generation if it is older)."""
        input_digest = digest(input)
        key = sub_key(self._effect.key, kind, name, input_digest)
        history = self._run.history
        sub = _Sub(key, kind, name, input_digest, history.in_flight(key), self._run.now())
        row = history.finished(key)
        if row is not None and key not in history.rows:
            self._take_over(sub, row)
        return sub, row

    def _take_over(self, sub: _Sub, row: EffectRow) -> None:
        requested = self._requested(sub, row.input, reused_from=row.generation)
        completed = EffectCompleted(
            key=sub.key, status=row.status, delivery_no=None, result=row.result, ended_at=self._run.now(), tree=row.end_tree
        )
        self._run.committer.soon(Part(Batch(requested=(requested,), completed=(completed,))))

    def _requested(self, sub: _Sub, input: JsonValue, *, reused_from: int | None = None) -> EffectRequested:
        return EffectRequested(
            key=sub.key, parent=self._effect.key, scope=self._effect.scope, kind=sub.kind, name=sub.name,
            input_digest=sub.input_digest, ordinal=0, request_no=None, input=input, started_at=sub.started_at,
            reused_from=reused_from, tree=self.tree,
        )

    def _completed(
        self, sub: _Sub, *, status: EffectStatus = "ok", result: JsonValue = None, error: CapatazError | None = None,
        usage: Usage | None = None, tree: str | None = None,
    ) -> EffectCompleted:
        return EffectCompleted(
            key=sub.key, status=status, delivery_no=None, result=result, error=error.to_json() if error is not None else None,
            usage=usage or Usage(), ended_at=self._run.now(), tree=tree, repeated=sub.repeated,
        )

    def _note(self, sub_kind: str, name: str, input: JsonValue, result: JsonValue, *, batch: Batch | None = None,
              events: tuple[Any, ...] = ()) -> None:
        """Journals a sub-effect that needs nobody; durable before whatever follows from it."""
        input_digest = digest(input)
        key = sub_key(self._effect.key, sub_kind, name, input_digest)
        sub = _Sub(key, sub_kind, name, input_digest, False, self._run.now())
        part = Batch(requested=(self._requested(sub, input),), completed=(self._completed(sub, result=result),))
        self._run.committer.soon(Part(part, events))
        if batch is not None:
            self._run.committer.soon(Part(batch))

    # ---- models --------------------------------------------------------------------------------

    async def model_call(
        self, *, turn: int, request: JsonValue, estimate: Usage, perform: Callable[[], Awaitable[ModelReply]]
    ) -> ModelReply:
        self.turns = max(self.turns, turn + 1)
        sub, row = await self._sub("model", f"t{turn}", request)
        if row is not None:
            return await self._recorded_reply(row)
        await self._safe_point()
        priced = replace(estimate, usd=self._price(estimate), turns=1, model_calls=1)
        reservation = await self._booking.reserve(sub.key, priced)
        await self._run.committer.durable(
            Part(Batch(requested=(self._requested(sub, {"turn": turn, "model": self._model}),), reserved=reservation))
        )
        self._run.ports.faults.reach("model.before")
        try:
            async with self._booking.within(sub.key):
                reply = await perform()
        except BaseException as error:
            await self._model_failed(sub, error)
            raise
        self._run.ports.faults.reach("model.after")
        return await self._model_answered(sub, turn, reply)

    async def _recorded_reply(self, row: EffectRow) -> ModelReply:
        if row.status != "ok":
            raise error_from_json(row.error)
        self.usage = self.usage + row.usage
        return ModelReply(response=await self._run.large.inward(row.result), usage=row.usage)

    async def _model_failed(self, sub: _Sub, error: BaseException) -> None:
        if isinstance(error, CapatazError):
            completed = self._completed(sub, status="error", error=error)
        elif isinstance(error, asyncio.CancelledError) and self._effect.cancelled is not None:
            completed = self._completed(sub, status="cancelled")
        else:
            await self._booking.release(sub.key)
            return  # the worker stops: the call is in flight for whoever comes next
        settled = await self._booking.settle(sub.key, Usage())
        self._run.committer.soon(Part(Batch(completed=(completed,), settled=settled)))

    async def _model_answered(self, sub: _Sub, turn: int, reply: ModelReply) -> ModelReply:
        usage = replace(
            reply.usage, usd=self._price(reply.usage), model_calls=1, turns=1, repeated_model_calls=1 if sub.repeated else 0,
            wall_s=0.0,
        )
        settled = await self._booking.settle(sub.key, usage)
        self.usage = self.usage + usage
        result = await self._run.large.outward(reply.response)
        called = {
            "agent": self._name, "turn": turn, "model": self._model, "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens, "usd": str(usage.usd),
            "duration_s": round(self._run.now() - sub.started_at, 3), "repeated": sub.repeated,
        }
        part = Part(
            Batch(completed=(self._completed(sub, result=result, usage=usage),), settled=settled),
            (("model.called", self._effect.key, called),),
        )
        self._run.committer.soon(part)  # whatever follows from the answer is durable only after it
        return ModelReply(response=reply.response, usage=usage)

    def _price(self, usage: Usage) -> Decimal:
        return self._run.prices.price(self._model, usage) or Decimal(0)

    # ---- tools ---------------------------------------------------------------------------------

    async def tool_call(
        self, *, turn: int, position: int, name: str, arguments: JsonValue, writes: bool,
        perform: Callable[[], Awaitable[ToolReply]],
    ) -> ToolReply:
        sub, row = await self._sub("tool", f"t{turn}.{position}:{name}", arguments)
        if row is not None:
            return await self._recorded_answer(row)
        await self._safe_point()
        place = f"t{turn}.{position}:{name}"
        perform = await self._tools.admit(sub.key, place=place, name=name, arguments=arguments, perform=perform, repeated=sub.repeated)
        shown = {"agent": self._name, "turn": turn, "tool": name, "arguments": _shortened(arguments)}
        kept = await self._run.large.outward(arguments)
        reservation = await self._booking.reserve(sub.key, self._worst_tool(), at_most=True)
        await self._run.committer.durable(
            Part(Batch(requested=(self._requested(sub, kept),), reserved=reservation), (("tool.called", self._effect.key, shown),))
        )
        self._run.ports.faults.reach("tool.before")
        began = time.monotonic()
        granted = reservation[0].usage.sandbox_s if reservation and self._booking.limited("sandbox_s") else None
        try:
            async with self._booking.within(sub.key, sandbox_s=granted):
                reply = await self._states.during(sub.key, perform)
            if writes and self._start_tree is not None:
                tree = await self._bench.snapshot()
                reply = replace(reply, tree=tree)
                self.tree = tree or self.tree
        except BaseException as error:
            await self._tool_failed(sub, error, time.monotonic() - began)
            raise
        self._run.ports.faults.reach("tool.after")
        await self._tool_answered(sub, turn, name, reply, time.monotonic() - began)
        return reply

    def _worst_tool(self) -> Usage:
        """A tool call may use the sandbox for as long as a command may last."""
        longest = float(self._run.options.get("command_timeout_s") or AgentLimits().command_timeout_s)
        return Usage(tool_calls=1, sandbox_s=longest if self._booking.limited("sandbox_s") else 0.0)

    async def _tool_failed(self, sub: _Sub, error: BaseException, lasted_s: float) -> None:
        if not isinstance(error, CapatazError):
            await self._booking.release(sub.key)
            return
        settled = await self._booking.settle(sub.key, Usage(tool_calls=1, sandbox_s=lasted_s))
        self._run.committer.soon(Part(Batch(completed=(self._completed(sub, status="error", error=error),), settled=settled)))

    async def _recorded_answer(self, row: EffectRow) -> ToolReply:
        if row.status != "ok":
            raise error_from_json(row.error)
        self.usage = self.usage + row.usage
        self.tree = row.end_tree or self.tree
        value = await self._run.large.inward(row.result)
        return ToolReply(**{**value, "artifacts": tuple(value["artifacts"])})

    async def _tool_answered(self, sub: _Sub, turn: int, name: str, reply: ToolReply, lasted_s: float) -> None:
        usage = Usage(tool_calls=1)
        settled = await self._booking.settle(sub.key, replace(usage, sandbox_s=lasted_s))
        self.usage = self.usage + usage
        result = await self._run.large.outward({**{name: getattr(reply, name) for name in ToolReply.__slots__}, "artifacts": list(reply.artifacts)})
        ended = {
            "agent": self._name, "turn": turn, "tool": name, "failed": reply.failed, "summary": reply.summary,
            "duration_s": round(self._run.now() - sub.started_at, 3), "tree": reply.tree,
        }
        part = Part(
            Batch(completed=(self._completed(sub, result=result, usage=usage, tree=reply.tree),), settled=settled),
            (("tool.ended", self._effect.key, ended), *self._states.events(sub.key)),
        )
        # A writing call must be a fact before the next one may change the files again.
        await self._run.committer.durable(part)

    # ---- the program's own checks --------------------------------------------------------------

    async def accept(self, *, turn: int, value: JsonValue) -> str | None:
        unfinished = await self._unfinished_states(turn, value) if self._states.owns else None
        if unfinished is not None:
            return unfinished
        check = self._effect.args.get("accept")
        if check is None:
            return None
        # The tree is part of it: the same words on other files are another submit.
        sub, row = await self._sub("accept", f"t{turn}", {"value": value, "tree": self.tree})
        if row is not None:
            refusal = row.result
        else:
            await self._safe_point()
            refusal = await self._refusal(check, value)
            requested = self._requested(sub, None)
            completed = self._completed(sub, result=refusal)
            await self._run.committer.durable(Part(Batch(requested=(requested,), completed=(completed,))))
        return None if refusal is None else self._refused(check, refusal)

    async def _unfinished_states(self, turn: int, value: JsonValue) -> str | None:
        sub, row = await self._sub("owns", f"t{turn}", {"value": value, "tree": self.tree})
        if row is not None:
            return row.result
        await self._safe_point()
        said = await self._states.unfinished()
        part = Batch(requested=(self._requested(sub, None),), completed=(self._completed(sub, result=said),))
        await self._run.committer.durable(Part(part))
        return said

    async def _refusal(self, check: dict[str, Any], value: JsonValue) -> JsonValue:
        if "callback" in check:
            answer = await self._effect.instance.call(check["callback"], [value])
            return None if answer in (None, True) else Refusal(code=OutputInvalid.code, message=str(answer)).model_dump()
        await self._ready()  # a check may look at the files, and a resumed agent may not have touched them yet
        refusal = await self._run.ports.coding.check(
            coding.context(self._run, self._effect), check["check"], check["args"], value
        )
        return None if refusal is None else refusal.model_dump(mode="json")

    def _refused(self, check: dict[str, Any], refusal: dict[str, Any]) -> str | None:
        """What to tell the model; after as many refusals as the check grants, its own error or acceptance."""
        told = self._refusals.get("submit", 0)
        if told < check.get("attempts", 1):
            self._refusals["submit"] = told + 1
            return str(refusal["message"])
        if check.get("then") == "accept":
            return None
        raise error_from_json({"code": refusal["code"], "message": refusal["message"], "details": refusal.get("details") or {}})

    async def select_context(self, *, turn: int, messages: list[JsonValue]) -> list[JsonValue] | None:
        callback = self._effect.args.get("context")
        if callback is None:
            return None
        number = callback["callback"] if isinstance(callback, dict) else callback
        selected = await self._effect.instance.call(number, [messages])
        if not isinstance(selected, list):
            raise OutputInvalid("context= must return the list of messages that the model is to see")
        return selected

    # ---- steering ------------------------------------------------------------------------------

    async def steering(self, *, turn: int) -> list[str]:
        recorded = self._recorded_notes(turn)
        if recorded is not None:
            return recorded
        if self._run.history.turn_asked(self._effect.key, f"t{turn}"):
            return []  # this call was made without: its prompt must stay what it was
        notes = self._run.inbox.notes_for(self._effect, self._name, self._told)
        if notes:
            self._deliver(turn, notes)
        return [note.text for note in notes]

    def _recorded_notes(self, turn: int) -> list[str] | None:
        key = sub_key(self._effect.key, "steering", f"t{turn}", _turn_digest(turn))
        row = self._run.history.finished(key)
        if row is None:
            return None
        if key not in self._run.history.rows:
            sub = _Sub(key, "steering", f"t{turn}", _turn_digest(turn), False, self._run.now())
            self._take_over(sub, row)
        self._told.update(note["id"] for note in row.result)
        return [note["text"] for note in row.result]

    def _deliver(self, turn: int, notes: list[Note]) -> None:
        self._told.update(note.id for note in notes)
        done = tuple(note.seq for note in notes if note.seq is not None)
        events = tuple(
            ("steering.delivered", self._effect.key, {"agent": self._name, "turn": turn, "text": note.text}) for note in notes
        )
        result = [{"id": note.id, "text": note.text} for note in notes]
        self._note("steering", f"t{turn}", {"turn": turn}, result, batch=Batch(inbox_done=done), events=events)

    # ---- the rest ------------------------------------------------------------------------------

    def emit(self, type: str, **data: JsonValue) -> None:
        self._run.emit(type, self._effect.key, {"agent": self._name, **data})

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        await self._ready()
        return await self._bench.session(forwards=forwards, read_only=read_only)

    async def _ready(self) -> None:
        async with self._preparing:
            if not self._prepared:
                await self._prepare()
                self._prepared = True

    async def _prepare(self) -> None:
        """The files as the journal says they are: a dead worker, or an earlier generation, may have left others."""
        again = self._effect.repeated or self._run.record.generation > 0
        if self.tree is not None and (again or self.tree != self._effect.input["workspace"]["tree"]):
            await self._bench.restore(self.tree)

    async def changed(self) -> str | None:
        return self.tree

    async def store(self, data: bytes, *, name: str, media_type: str) -> str:
        self._run.ports.faults.reach("blob.before")
        uri = await self._run.ports.blobs.put(data)
        self._run.ports.faults.reach("blob.after")
        self.artifact_bytes += len(data)
        stored = {"name": name, "uri": uri, "media_type": media_type, "bytes": len(data)}
        self._run.emit("artifact.stored", self._effect.key, stored)
        return uri

    async def state_read(self, name: str) -> StateView:
        return await self._states.read(name)

    async def state_edit(self, name: str, *, patch: JsonValue, version: int) -> StateView:
        return await self._states.edit(name, patch, version)

    async def own_tool(self, name: str, arguments: JsonValue) -> JsonValue:
        return await self._tools.call(name, arguments)

    async def ask(self, question: str, options: list[str] | None, *, place: str | None = None, context: JsonValue = None) -> str:
        kind = "choice" if options else "text"
        answer = await self.question(question, kind=kind, options=options, place=present_call.get("") if place is None else place, context={"agent": self._name, **(context or {})})
        return str(answer["value"])

    async def question(
        self, question: str, *, kind: str, options: list[str] | None, place: str, context: JsonValue, binding: str | None = None
    ) -> dict[str, Any]:
        """A question to a person, asked once in a ``place`` of the conversation: a sub-effect that parks the run like any ask.

        Gives ``value``, ``by`` and ``note``."""
        given = {"question": question, "options": options, "kind": kind, "place": place}
        sub, row = await self._sub("ask", question[:40].replace("\n", " "), given)
        if row is not None:
            return row.result
        ask_id = people.ask_id(self._run, sub.key)
        if sub.key not in self._run.history.rows:
            ask = NewAsk(
                ask_id=ask_id, effect=sub.key, kind=kind, question=question, options=options, schema=None, context=context,
                approvers=(), channel=None, risk=None, binding=binding, opened_at=sub.started_at, expires_at=None,
            )
            opened = {"ask": ask_id, "kind": kind, "question": question, "binding": binding}
            await self._run.committer.durable(
                Part(Batch(requested=(self._requested(sub, given),), asks=(ask,)), (("ask.opened", self._effect.key, opened),))
            )
        return await self._answer(sub, ask_id)

    async def _answer(self, sub: _Sub, ask_id: str) -> dict[str, Any]:
        self._run.ports.faults.reach("ask.after")
        self._effect.waiting = {"on": "asks", "ask": ask_id, "due": None}
        self._run.note_idle()
        try:
            record = await self._run.inbox.answer(ask_id, None)
        finally:
            self._effect.waiting = None
        assert record is not None
        answer = {"value": record.answer, "by": record.answered_by, "note": record.note}
        data = {"ask": ask_id, "value": record.answer, "by": record.answered_by, "channel": record.answer_channel}
        part = Batch(completed=(self._completed(sub, result=answer),))
        await self._run.committer.durable(Part(part, (("ask.answered", self._effect.key, data),)))
        return answer


@lru_cache(maxsize=1024)
def _turn_digest(turn: int) -> str:
    """What identifies the steering of a turn."""
    return digest({"turn": turn})


def _shortened(value: JsonValue) -> JsonValue:
    """Arguments as an event shows them: long strings are cut."""
    if isinstance(value, str) and len(value) > ARGUMENT_SHOWN:
        return value[:ARGUMENT_SHOWN] + f"… ({len(value)} characters)"
    if isinstance(value, dict):
        return {k: _shortened(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_shortened(v) for v in value[:50]]
    return value
