"""A program under way: its process, the order of its requests and of what is delivered to it.

Three phases that a run passes without a seam: *replay* hands out the journal's deliveries and
compares every request with the journal; *merging* (a new generation) hands out old results by key; *live* performs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import EffectCancelled, NondeterminismError, error_from_json
from capataz.contracts.journal import Batch, EffectCompleted, EffectRequested, EffectRow
from capataz.vm.committer import Part
from capataz.vm.effect import Completion, Done, Effect
from capataz.vm.effects import EARLY
from capataz.vm.keys import Identity
from capataz.vm.lanes import FIRST, Lane, epoch_identity, lane_rows
from capataz.vm.pipe import Pipe

if TYPE_CHECKING:
    from capataz.vm.run import Run

REPLAY_CHUNK = 200
FRAME_ROWS = 100
FRAMES_AHEAD = 4
Replayed = tuple[EffectRow, JsonValue]
PIECE = 64         # requests, or ends, that are handed in before the next are looked at: the database and the program work meanwhile
COLLECT_S = 0.002  # how long a completion waits for the requests that follow from it, to share one commit


class Instance:
    """``parent``: the key of the child effect that this program is, None for the run's own. ``scope``: its prefix."""

    def __init__(self, run: Run, *, parent: str | None, scope: str, start: dict[str, Any]) -> None:
        self.run = run
        self.parent = parent
        self.scope = scope
        self.effects: dict[int, Effect] = {}
        self._open: dict[int, Effect] = {}         # those without an end: few, while a run may have many behind it
        self.idle = False
        self._start_frame = {"t": "start", "scope": scope, "busy_s": run.ports.busy_s, **start}
        self._lanes: dict[int | None, Lane] = {None: Lane(parent, run.history.program(parent))}
        self._recorded = {row.key: row for row in lane_rows(run.history.program, parent)}
        self._deliveries = sorted(
            (row for row in self._recorded.values() if row.delivery_no is not None), key=lambda row: row.delivery_no or 0
        )
        self._unasked_rows = dict(self._recorded)
        self._by_key: dict[str, Effect] = {}       # of the rows that are replayed
        self._replayed = 0
        self._delivered = 0
        self._live = False
        self._merge: dict[int, tuple[tuple[int, int], EffectRow]] = {}
        self._inline: deque[Completion] = deque()
        self._ready: deque[Completion] = deque()
        self._wake = asyncio.Event()
        self._to_start: list[Effect] = []
        self._pending: list[Part] = []
        self._pipe: Pipe | None = None
        self._forked = 0

    @property
    def sources(self) -> dict[str, str] | None:
        """The source closure of its program."""
        return self._start_frame.get("files")

    # ---- life ----------------------------------------------------------------------------------

    async def execute(self) -> JsonValue:
        """Runs the program to its end and returns its result as JSON. Raises the program's error."""
        async with Pipe.open(self.run.zygote) as pipe:
            self._pipe = pipe
            frame = await pipe.ask(self._start_frame)
            await self._admit(frame)
            if frame["t"] == "batch" and self._may_run_ahead():
                frame = await self._replay_ahead(pipe, frame)
            while frame["t"] == "batch":
                frame = await self._deliver(await self._next_items())
                await self._admit(frame)
            return await self._end(frame)

    async def _end(self, frame: dict[str, Any]) -> JsonValue:
        if not self._live and not self._replay_complete():
            raise self._unasked()
        await self._commit()
        if frame["t"] == "failed":
            raise error_from_json(frame["error"])
        return frame["result"]

    async def call(self, callback: int, args: JsonValue) -> JsonValue:
        """Runs a pure callback of the program (``accept=``, ``context=``)."""
        assert self._pipe is not None
        return await self._pipe.call(callback, args)

    async def fork(self, no: int, env: dict[str, str]) -> JsonValue:
        """Runs a step's function in a child of the program process; cancelling kills it."""
        assert self._pipe is not None
        return await self._pipe.fork({"no": no, "env": env})

    async def fork_callback(self, name: str, callback: int, args: JsonValue, env: dict[str, str]) -> JsonValue:
        """The same for a function that is no step's: a tool's."""
        assert self._pipe is not None
        self._forked += 1
        # Below zero: the numbers of steps are those of requests.
        return await self._pipe.fork({"no": -self._forked, "name": name, "callback": callback, "args": args, "env": env})

    # ---- requests ------------------------------------------------------------------------------

    async def _admit(self, frame: dict[str, Any], replayed: Sequence[Replayed] = ()) -> None:
        """Takes the requests of a batch. ``replayed``: what was delivered before it, from delivery ``_replayed`` on; what a request
        is identified by (the trees of workspaces) may depend on what had been delivered when it was made."""
        left = deque(replayed)
        for request in frame.get("requests", ()):
            while left and self._replayed < request["after"]:
                self._observe_replayed(*left.popleft())
            await self._admit_request(request)
            if len(self._pending) >= PIECE and (self._live or not self._recorded):
                await self._send_off()
        for row, value in left:
            self._observe_replayed(row, value)
        for cancel in frame.get("cancels", ()):
            await self._cancel(cancel[0], cancel[1] or "cancelled by the program")

    async def _admit_request(self, request: dict[str, Any]) -> None:
        lane = self._lanes[request.get("lane")]
        if request["kind"] == "epoch" and request["n"] != FIRST:
            lane.turn = request
            return
        effect = self._effect(lane, request)
        self.effects[effect.no] = self._open[effect.no] = effect
        lane.note(effect)
        row = lane.rows.by_number.get(effect.n)
        if row is not None:
            self._check_order(effect, row)
            self._unasked_rows.pop(row.key, None)
            self._by_key[row.key] = effect
            effect.started_at = row.started_at
            if row.status == "requested":
                effect.repeated = row.reused_from is None
                self._begin(effect, await self._reusable(effect) if row.reused_from is not None else None)
            return
        old = await self._reusable(effect)
        if old is not None:
            effect.started_at = old.started_at
        await self._journal_request(effect, reused_from=old.generation if old is not None else None)
        effect.repeated = old is None and self.run.history.in_flight(effect.key)
        self._begin(effect, old)

    def _begin(self, effect: Effect, old: EffectRow | None) -> None:
        """Takes an old result over, or has the effect performed."""
        if old is not None:
            self._merge[effect.no] = (self.run.history.merge_order(old), old)
            return
        inline = self.run.inline(effect)
        if inline is None:
            self._to_start.append(effect)
        else:
            self._inline.append(inline)

    async def _reusable(self, effect: Effect) -> EffectRow | None:
        if effect.kind == "epoch":
            return self.run.history.epoch(effect.lane.parent)
        return await self.run.reusable(effect)

    def _effect(self, lane: Lane, request: dict[str, Any]) -> Effect:
        kind, name, scope = request["kind"], request["name"], request["scope"]
        input = request["input"]
        if kind == "epoch":
            identity = self._present_epoch(lane)
        else:
            identity = lane.identities.identify(scope, kind, name, self.run.inputs_of(kind, self._named(kind, input)))
        effect = Effect(
            instance=self, no=request["no"], kind=kind, name=name, scope=scope, input=input, args=request.get("args") or {},
            site=request.get("site", ""), identity=identity, started_at=self.run.now(), lane=lane, n=request["n"],
        )
        if kind == "loop":
            rows = self.run.history.program(effect.key)
            self._lanes[effect.no] = Lane(effect.key, rows, loop=effect, outer_trees=dict(self.run.trees))
        elif kind == "epoch":
            lane.epoch = effect
        return effect

    def _present_epoch(self, lane: Lane) -> Identity:
        """The epoch that the journal is at: of this generation, else of an earlier one, else the first."""
        assert lane.loop is not None
        row = lane.rows.by_number.get(FIRST) or self.run.history.epoch(lane.parent)
        return epoch_identity(lane.loop.identity, row.ordinal if row is not None else 0)

    def _named(self, kind: str, input: Any) -> Any:
        """A handle's method names its target by a number that is the same in every process: in its lane, or by its key."""
        if kind != "control":
            return input
        target = self.effects.get(input["target"])
        if target is None:
            return {**input, "target": None}  # of an epoch that is over
        return {**input, "target": target.n if target.lane.loop is None else target.key}

    def _check_order(self, effect: Effect, row: EffectRow) -> None:
        if row.key == effect.key:
            return
        raise NondeterminismError(
            f"{effect.site}: unchanged code asked for {effect.key}, but the journal of this run has {row.key} at this place; "
            "nothing was run. A program must depend only on its input and on what its effects return "
            "(use now(), random and step()); to go on with edited code use `capataz resume RUN --with FILE`",
            site=effect.site, asked=effect.key, journal=row.key,
        )

    def _unasked(self) -> NondeterminismError:
        missing = next(iter(self._unasked_rows.values()), None)
        last = max(self.effects.values(), key=lambda e: e.no, default=None)
        where = f"{last.site}: after this line " if last is not None else ""
        what = missing.key if missing is not None else "an effect"
        return NondeterminismError(
            f"{where}unchanged code no longer asks for {what}, which the journal of this run has; nothing was run",
            site=last.site if last is not None else None, journal=what,
        )

    async def _journal_request(self, effect: Effect, *, reused_from: int | None) -> None:
        identity = effect.identity
        requested = EffectRequested(
            key=effect.key, parent=effect.lane.parent, scope=identity.scope, kind=identity.kind, name=identity.name,
            input_digest=identity.input_digest, ordinal=identity.ordinal, request_no=effect.n,
            input=await self.run.kept_input(effect), started_at=effect.started_at, reused_from=reused_from,
            tree=self.run.start_tree(effect),
        )
        self._pending.append(Part(Batch(requested=(requested,))))
        part = self.run.request_part(effect) if reused_from is None else None
        if part is not None:
            self._pending.append(part)

    # ---- cancellation --------------------------------------------------------------------------

    async def _cancel(self, no: int, reason: str) -> None:
        for lane in self._lanes.values():
            if lane.turn is not None and lane.turn["no"] == no:
                lane.turn = None  # the loop is left: its epoch stays as it is
        effect = self.effects.get(no)
        if effect is None or effect.ended or effect.cancelled is not None or no in self._merge:
            return
        row = self._recorded.get(effect.key)
        if row is not None and row.status != "requested":
            return  # its recorded end is or will be delivered
        effect.cancelled = reason
        if effect.task is not None:
            effect.task.cancel()
            return
        was_inline = [c for c in self._inline if c.effect is effect]
        if not was_inline:
            self._to_start = [e for e in self._to_start if e is not effect]
            self._inline.append(self.cancelled(effect))

    def cancelled(self, effect: Effect) -> Completion:
        error = EffectCancelled(effect.cancelled or "cancelled", run_id=self.run.run_id, effect=effect.key)
        return Completion(effect, "cancelled", self.run.now(), error=error)

    def cancel(self, no: int, reason: str) -> None:
        """Cancels an effect from outside the program (``Handle.cancel`` of another task, an operator)."""
        effect = self.effects[no]
        if not effect.ended and effect.cancelled is None:
            effect.cancelled = reason
            if effect.task is not None:
                effect.task.cancel()
            else:
                self.complete(self.cancelled(effect))

    # ---- replay --------------------------------------------------------------------------------

    def _may_run_ahead(self) -> bool:
        """Whether requests have the numbers that their rows tell: before any loop, which makes a lane of its own."""
        return bool(self._deliveries) and all(row.kind != "loop" for row in self._recorded.values())

    async def _replay_ahead(self, pipe: Pipe, frame: dict[str, Any]) -> dict[str, Any]:
        """Hands out what is recorded a few frames ahead of the program's answers, so that both work at the same time: what comes
        next is known. A program that asks otherwise than the journal says is found out when its answer comes, and nothing was
        performed by then. Returns the last answer, its requests taken."""
        rows = iter(self._deliveries)
        ahead: deque[list[Replayed]] = deque()
        while frame["t"] == "batch":
            while len(ahead) < FRAMES_AHEAD and (chunk := list(islice(rows, FRAME_ROWS))):
                ahead.append([(row, await self.run.large.inward(row.result)) for row in chunk])
                pipe.deliver([_recorded_item(row.request_no, row, value) for row, value in ahead[-1]])
            if not ahead:
                break
            frame = await pipe.batch()
            await self._admit(frame, ahead.popleft())
        return frame

    # ---- deliveries ----------------------------------------------------------------------------

    async def _next_items(self) -> list[Completion | EffectRow]:
        if not self._live:
            rows = self._next_replayed()
            if rows:
                return list(rows)
            if not self._replay_complete():
                raise self._unasked()
            self._live = True
        if self._merge:
            return [self._next_merged()]
        if self._inline:
            return list(_drain(self._inline))
        if all(effect.kind in EARLY for effect in self._to_start):
            self._hand_in()
        else:
            await self._commit()
        for lane in self._lanes.values():
            if lane.turn is not None and self._over(lane):
                return [await self._turn(lane, lane.turn)]
        self._start_effects()
        while not self._ready:
            self.idle = True
            self.run.note_idle()
            self._wake.clear()
            await self._wake.wait()
        self.idle = False
        return [self._ready.popleft() for _ in range(min(len(self._ready), PIECE))]

    def _next_replayed(self) -> list[EffectRow]:
        rows: list[EffectRow] = []
        for row in self._deliveries[self._replayed : self._replayed + REPLAY_CHUNK]:
            if row.key not in self._by_key:
                break
            rows.append(row)
        return rows

    def _replay_complete(self) -> bool:
        return self._replayed == len(self._deliveries) and not self._unasked_rows

    def _next_merged(self) -> Completion:
        no = min(self._merge, key=lambda n: self._merge[n][0])
        _, row = self._merge.pop(no)
        effect = self.effects[no]
        done = Done(row.result, tree=row.end_tree)
        # The old time, so that a prompt that tells the time stays the same. In the program, time never goes back.
        at = row.ended_at if row.ended_at is not None else self.run.now()
        return Completion(effect, "ok", at, done, reused_from=row.generation)

    async def _deliver(self, items: list[Completion | EffectRow]) -> dict[str, Any]:
        assert self._pipe is not None
        wire: list[dict[str, Any]] = []
        for item in items:
            wire.append(await self._replay_item(item) if isinstance(item, EffectRow) else await self._fresh_item(item))
        self._pipe.deliver(wire)
        frame = None
        if self._pending and any(isinstance(item, Completion) for item in items):
            frame = await self._pipe.batch_within(COLLECT_S)
            if frame is None:
                self._hand_in()
        return frame or await self._pipe.batch()

    async def _replay_item(self, row: EffectRow) -> dict[str, Any]:
        value = await self.run.large.inward(row.result)
        no = self._by_key[row.key].no
        self._observe_replayed(row, value)
        return _recorded_item(no, row, value)

    def _observe_replayed(self, row: EffectRow, value: JsonValue) -> None:
        self._replayed += 1
        self._delivered = (row.delivery_no or 0) + 1
        effect = self._by_key.pop(row.key, None)
        if effect is None:
            raise self._unasked()
        self._end_effect(effect)
        self.run.observe(effect, row.end_tree, value)

    async def _fresh_item(self, completion: Completion) -> dict[str, Any]:
        effect = completion.effect
        self._end_effect(effect)
        number = self._delivered
        self._delivered += 1
        done = completion.done
        error = completion.error.to_json() if completion.error is not None else None
        kept = await self.run.large.outward(done.result)
        row = EffectCompleted(
            key=effect.key, status=completion.status, delivery_no=number, result=kept, error=error, usage=done.usage,
            ended_at=completion.ended_at, tree=done.tree, repeated=completion.repeated,
        )
        self._pending.append(Part(Batch(completed=(row,))))
        self._pending.extend(done.parts)
        if completion.reused_from is None and (part := self.run.completion_part(completion)) is not None:
            self._pending.append(part)
        value = await self.run.large.inward(done.result)
        self.run.observe(effect, done.tree, value)
        answer = {"ok": value} if error is None else {"error": error}
        return {"no": effect.no, **answer, "now": completion.ended_at}

    def _end_effect(self, effect: Effect) -> None:
        effect.ended = True
        self._open.pop(effect.no, None)

    # ---- epochs --------------------------------------------------------------------------------

    def _over(self, lane: Lane) -> bool:
        """Whether all that the present epoch started has ended, inner loops included."""
        return all(effect.ended for effect in lane.effects) and all(self._over(inner) for inner in self._inner(lane))

    def _inner(self, lane: Lane) -> list[Lane]:
        return [inner for inner in self._lanes.values() if inner.loop is not None and inner.loop.lane is lane]

    async def _turn(self, lane: Lane, request: dict[str, Any]) -> Completion:
        """Ends an epoch and begins the next: what was is archived in the transaction that keeps the carry."""
        assert lane.epoch is not None and lane.loop is not None
        number = lane.epoch.identity.ordinal + 1
        finished = self._forget(lane)
        effect = Effect(
            instance=self, no=request["no"], kind="epoch", name="", scope=request["scope"], input={}, args=request["args"],
            site=request["site"], identity=epoch_identity(lane.loop.identity, number), started_at=self.run.now(), lane=lane, n=FIRST,
        )
        self.effects[effect.no] = lane.epoch = effect
        lane.note(effect)
        await self._journal_request(effect, reused_from=None)
        self._pending.append(Part(Batch(archived=finished)))
        self.run.ports.faults.reach("epoch.turn")
        carry = request["args"]["carry"]
        trees = lane.kept_trees(self.run.trees, carry)
        if not self._open and len(self._lanes) == 2 and self.run.instances == [self]:
            self.run.trees = {w: t for w, t in self.run.trees.items() if w in trees or w in lane.outer_trees}
        return Completion(effect, "ok", self.run.now(), Done({"epoch": number, **request["args"], "trees": trees}))

    def _forget(self, lane: Lane) -> tuple[str, ...]:
        """Drops the present epoch from memory; returns the keys of its effects (the journal finds what is below them)."""
        for inner in self._inner(lane):
            self._forget(inner)
            del self._lanes[inner.loop.no]  # type: ignore[union-attr]
        for effect in lane.effects:
            self.effects.pop(effect.no, None)
            self._by_key.pop(effect.key, None)
            self._recorded.pop(effect.key, None)
        return lane.renew()

    # ---- performing ----------------------------------------------------------------------------

    async def _commit(self) -> None:
        if not self._pending:
            return
        parts, self._pending = self._pending, []
        await self.run.committer.durable(*parts)

    def _hand_in(self) -> None:
        """The same without waiting: nothing follows that another commit does not come before."""
        parts, self._pending = self._pending, []
        if parts:
            self.run.committer.soon(*parts)

    async def _send_off(self) -> None:
        self._hand_in()
        await self.run.committer.started()

    def _start_effects(self) -> None:
        if self.run.draining:
            for effect in self._to_start:
                effect.suspended = True
            return
        effects, self._to_start = self._to_start, []
        for effect in effects:
            effect.suspended = False
            effect.task = asyncio.create_task(self._perform(effect), name=effect.key)

    async def _perform(self, effect: Effect) -> None:
        completion = await self.run.perform(effect)
        if completion is None:
            effect.suspended = True
            self.run.note_idle()
            return
        self.complete(completion)

    def complete(self, completion: Completion) -> None:
        self._ready.append(completion)
        self._wake.set()

    def unfinished(self) -> list[Effect]:
        """Effects that were asked for and have no end yet."""
        return list(self._open.values())

    @property
    def quiet(self) -> bool:
        """Idle, and nothing is ready to be delivered."""
        return self.idle and not self._ready


def _drain(queue: deque[Completion]) -> list[Completion]:
    items = list(queue)
    queue.clear()
    return items


def _recorded_item(no: int | None, row: EffectRow, value: JsonValue) -> dict[str, Any]:
    """A recorded end as the program gets it."""
    if row.status == "ok":
        return {"no": no, "ok": value, "now": row.ended_at}
    return {"no": no, "error": row.error, "now": row.ended_at}
