"""``capataz plan``: what a resume would reuse, run and orphan, found by a dry drive that performs and writes nothing.

The program runs in its process as always and gets the results that the journal holds. A request without one is noted as
"would run" and stays open; when nothing more can be delivered, what follows from the open ones is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.errors import CapatazError, error_from_json
from capataz.contracts.journal import EffectRow, RunRecord
from capataz.vm import effects as performers
from capataz.vm.effects import loaded
from capataz.vm.history import History
from capataz.vm.keys import Identities, Identity, agent_name, child_scope, sub_key
from capataz.vm.lanes import FIRST, epoch_identity
from capataz.vm.large import LargeValues
from capataz.vm.orphans import is_external, orphans
from capataz.vm.pipe import Pipe, ProcessDied
from capataz.vm.ports import Ports, process_source
from capataz.vm.seeds import origin

_WITHOUT_RESULT = frozenset({"checkpoint", "budget", "loop", "epoch"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the dry drive. ``row``: the recorded result that it takes over."""

    no: int
    identity: Identity
    args: Mapping[str, Any]
    input: Any
    site: str
    row: EffectRow | None


@dataclass
class Plan:
    """``ended``: the program came to its end on recorded results alone, so the plan is exact."""

    ended: bool = False
    error: CapatazError | None = None
    reused: list[Asked] = field(default_factory=list[Asked])
    run: list[Asked] = field(default_factory=list[Asked])


class DryRun:
    """What handlers of identities look at in a run, without a lease."""

    def __init__(self, ports: Ports, record: RunRecord, history: History) -> None:
        self.ports = ports
        self.record = record
        self.history = history
        self.options: Mapping[str, Any] = record.options or {}
        self.large = LargeValues(ports.blobs)
        self.trees: dict[str, str] = {}
        self.plan = Plan()

    def inputs_of(self, kind: str, input: JsonValue) -> JsonValue:
        add: Any = performers.IDENTITY.get(kind)
        return input if add is None else add(self, input)

    def observe(self, asked: Asked, tree: str | None, value: JsonValue) -> None:
        if asked.identity.kind == "epoch":
            self.trees.update(value.get("trees") or {})
        elif asked.identity.kind == "coding.workspace" and isinstance(value, dict):
            self.trees[value["workspace_id"]] = value["tree"]
        workspace = asked.input.get("workspace") if isinstance(asked.input, dict) else None
        if tree is not None and isinstance(workspace, dict):
            self.trees[workspace["workspace_id"]] = tree

    async def reusable(self, identity: Identity, args: Mapping[str, Any]) -> EffectRow | None:
        row = self.history.reusable.get(identity.key)
        if row is None or identity.kind != "child":
            return row
        kept = await self.large.inward(row.input)
        return row if isinstance(kept, dict) and kept.get("source") == self.record.source_digest else None


class _DryProgram:
    """One program of the dry drive: the run's own, or a child that is entered again."""

    def __init__(self, run: DryRun, scope: str, start: dict[str, Any]) -> None:
        self._run = run
        self._start = {"t": "start", "scope": scope, "path": [], **start}
        self._identities: dict[int | None, Identities] = {None: Identities()}    # by lane: the program's own, or of a loop
        self._loops: dict[int, Identity] = {}
        self._merge: list[Asked] = []
        self._given: list[Asked] = []
        self._children: list[Asked] = []
        self._now = float(start["now"])
        self._mine: list[Asked] = []

    async def drive(self) -> dict[str, Any] | None:
        """The last frame (``done`` or ``failed``); None when the program waits for what is not recorded."""
        async with Pipe.open(process_source(self._run.ports, self._run.options)) as pipe:
            frame = await pipe.ask(self._start)
            while True:
                await self._admit(frame)
                if frame["t"] != "batch":
                    return frame
                item = await self._next()
                if item is None:
                    return None
                self._now = max(self._now, item["now"])
                pipe.deliver([item])
                frame = await pipe.batch()

    async def _admit(self, frame: dict[str, Any]) -> None:
        for request in frame.get("requests", ()):
            await self._ask(request)
        gone = {cancel[0] for cancel in frame.get("cancels", ())}
        dropped = [a for a in (*self._given, *self._children, *self._run.plan.run) if a.no in gone and a in self._mine]
        for asked in dropped:
            for place in (self._given, self._children, self._run.plan.run):
                if asked in place:
                    place.remove(asked)

    async def _ask(self, request: dict[str, Any]) -> None:
        kind, input, args = request["kind"], request["input"], request.get("args") or {}
        lane = request.get("lane")
        if kind == "epoch" and request["n"] != FIRST:
            return  # all of an epoch is recorded but its end: what the next one does is not known
        if kind == "epoch":
            loop = self._loops[request["lane"]]
            row = self._run.history.epoch(loop.key)
            identity = epoch_identity(loop, row.ordinal if row is not None else 0)
        else:
            identity = self._identities[lane].identify(request["scope"], kind, request["name"], self._run.inputs_of(kind, input))
            row = await self._run.reusable(identity, args)
        if kind == "loop":
            self._loops[request["no"]], self._identities[request["no"]] = identity, Identities()
        asked = Asked(request["no"], identity, args, input, request.get("site", ""), row)
        self._mine.append(asked)
        if row is not None:
            self._merge.append(asked)
            self._run.plan.reused.append(asked)
        elif kind == "child":
            self._children.append(asked)
        else:
            self._run.plan.run.append(asked)
            if kind in _WITHOUT_RESULT or (kind == "control" and input.get("op") != "status"):
                self._given.append(asked)

    async def _next(self) -> dict[str, Any] | None:
        """The next item to deliver, as the kernel would choose it."""
        if self._merge:
            asked = min(self._merge, key=_old_order)
            self._merge.remove(asked)
            return await self._recorded(asked)
        if self._given:
            given = self._given.pop(0)
            return {"no": given.no, "ok": {"epoch": 0, **given.args} if given.identity.kind == "epoch" else None, "now": self._now}
        while self._children:
            asked = self._children.pop(0)
            item = await self._enter(asked)
            if item is not None:
                return item
        return None

    async def _recorded(self, asked: Asked) -> dict[str, Any]:
        row = asked.row
        assert row is not None
        value = await self._run.large.inward(row.result)
        self._run.observe(asked, row.end_tree, value)
        return {"no": asked.no, "ok": value, "now": row.ended_at or self._now}

    async def _enter(self, asked: Asked) -> dict[str, Any] | None:
        """A child whose result is not recorded, or not of these sources: its own effects may be."""
        run, identity = self._run, asked.identity
        start = {**self._start, "ref": asked.input["program"], "input": asked.input["input"], "now": self._now}
        if asked.args.get("loaded"):
            pin = run.history.finished(sub_key(identity.key, loaded.KIND, start["ref"], digest(start["ref"])))
            if pin is None:
                run.plan.run.append(asked)     # a file that was never read: its program is found when it runs
                return None
            start["ref"], start["files"] = pin.result["ref"], await run.ports.journal.get_source(pin.result["digest"])
        frame = await _DryProgram(run, child_scope(identity), {k: v for k, v in start.items() if k not in ("t", "scope", "path")}).drive()
        if frame is None:
            run.plan.run.append(asked)
            return None
        if frame["t"] == "failed":
            error = {"code": "child_failed", "message": f"{identity.name}: {frame['error'].get('message', '')}", "details": {}}
            return {"no": asked.no, "error": error, "now": self._now}
        run.plan.reused.append(asked)
        return {"no": asked.no, "ok": frame["result"], "now": self._now}


def _old_order(asked: Asked) -> tuple[int, int]:
    assert asked.row is not None
    return History.merge_order(asked.row)


async def make_plan(ports: Ports, record: RunRecord, files: dict[str, str], *, ref: str, source_digest: str) -> dict[str, Any]:
    """The plan of a resume of ``record`` with these sources, as JSON. Raises the errors of loading a program."""
    rows = [
        row for generation in range(record.generation + 1) for row in await ports.journal.effects(record.run_id, generation=generation)
    ]
    large = LargeValues(ports.blobs)
    seed, started = origin(record)
    after = replace(record, source_digest=source_digest, input=await large.inward(record.input), generation=record.generation + 1)
    run = DryRun(ports, after, History([], rows))
    start = {"ref": ref, "files": files, "input": after.input, "seed": seed, "now": started}
    try:
        frame = await _DryProgram(run, "", start).drive()
    except ProcessDied:
        frame = None
    if frame is not None:
        run.plan.ended = frame["t"] == "done"
        run.plan.error = error_from_json(frame["error"]) if frame["t"] == "failed" else None
    return await _told(run, rows, record)


# ---- telling -------------------------------------------------------------------------------------


async def _told(run: DryRun, rows: list[EffectRow], record: RunRecord) -> dict[str, Any]:
    plan = run.plan
    asked = [_as_row(a, record.generation + 1) for a in (*plan.reused, *plan.run)]
    lost = await orphans(asked, rows, run.large)
    gone = [row for row in lost if plan.ended or _passed(row, plan.run, rows)]
    lost_json = [{**_place(row), "external": await is_external(row, run.large), "certain": plan.ended} for row in gone]
    undecided = [_place(row) for row in lost if row not in gone]
    prices = _Prices(rows)
    would_run = [{**_shown(a), "why": _why(a, rows), **prices.estimate(a)} for a in plan.run]
    saved = sum((prices.spent(a.row) for a in plan.reused if a.row is not None), Decimal(0))
    known = [Decimal(item["estimate_usd"]) for item in would_run if item.get("estimate_usd") is not None]
    return {
        "run_id": record.run_id,
        "complete": plan.ended,
        "error": plan.error.to_json() if plan.error is not None else None,
        "reused": [{**_shown(a), "usd": str(prices.spent(a.row)) if a.row is not None else "0"} for a in plan.reused],
        "run": would_run,
        "orphans": lost_json,
        "undecided": undecided,
        "price": {
            "saved_usd": str(saved),
            "estimate_usd": str(sum(known, Decimal(0))),
            "unknown": sum(1 for item in would_run if item["kind"] == "agent" and item.get("estimate_usd") is None),
            "at_least": not plan.ended,
        },
    }


def _as_row(asked: Asked, generation: int) -> EffectRow:
    """What the journal would say of the request: enough for finding orphans."""
    identity, row = asked.identity, asked.row
    given: dict[str, Any] = {name: None for name in EffectRow.__slots__}
    given |= {
        "generation": generation, "key": identity.key, "kind": identity.kind, "name": identity.name, "scope": identity.scope,
        "request_no": asked.no, "reused_from": row.generation if row is not None else None,
    }
    return EffectRow(**given)


def _shown(asked: Asked) -> dict[str, Any]:
    identity = asked.identity
    agent = agent_name(identity.scope, identity.name) if identity.kind == "agent" else None
    return {"key": identity.key, "kind": identity.kind, "name": identity.name, "agent": agent, "site": asked.site}


def _place(row: EffectRow) -> dict[str, Any]:
    return {"key": row.key, "kind": row.kind, "name": row.name, "status": row.status}


def _passed(row: EffectRow, waiting: list[Asked], rows: list[EffectRow]) -> bool:
    """Whether the program has come past the place of an old effect without asking for it: it waits for what took its place, or
    for what came later in the same scope."""
    for asked in waiting:
        identity = asked.identity
        if identity.scope != row.scope:
            continue
        if (identity.kind, identity.name) == (row.kind, row.name):
            return True
        later = [r for r in rows if (r.scope, r.kind, r.name, r.parent) == (identity.scope, identity.kind, identity.name, row.parent)]
        if any((r.request_no or 0) > (row.request_no or 0) for r in later):
            return True
    return False


def _why(asked: Asked, rows: list[EffectRow]) -> str:
    """``failed``, ``in_flight`` or ``cancelled``: it was asked for before; ``changed``: under the same name; else ``new``."""
    identity = asked.identity
    same = [row for row in rows if row.key == identity.key]
    if same:
        return {"error": "failed", "cancelled": "cancelled", "ok": "sources_changed"}.get(same[-1].status, "in_flight")
    known = any((row.scope, row.kind, row.name) == (identity.scope, identity.kind, identity.name) for row in rows)
    return "changed" if known else "new"


class _Prices:
    """What agents of this run have cost so far, by name."""

    def __init__(self, rows: list[EffectRow]) -> None:
        self._calls: dict[str, list[Decimal]] = {}
        self._by_name: dict[str, list[Decimal]] = {}
        for row in rows:
            if row.kind == "model" and row.status == "ok" and row.parent is not None and row.reused_from is None:
                self._calls.setdefault(row.parent, []).append(row.usage.usd)
        for row in {row.key: row for row in rows if row.kind == "agent" and row.status == "ok"}.values():
            self._by_name.setdefault(row.name, []).append(self.spent(row))

    def spent(self, row: EffectRow | None) -> Decimal:
        return sum(self._calls.get(row.key, []), Decimal(0)) if row is not None else Decimal(0)

    def estimate(self, asked: Asked) -> dict[str, Any]:
        """An agent's cost: the mean of those of its name, else of all, less what its recorded calls have cost already."""
        if asked.identity.kind != "agent":
            return {}
        known = self._by_name.get(asked.identity.name)
        basis = "same name" if known else "all agents of the run"
        known = known or [usd for amounts in self._by_name.values() for usd in amounts]
        made = self._calls.get(asked.identity.key, [])
        if not known:
            return {"estimate_usd": None, "basis": None, "recorded_calls": len(made)}
        mean = sum(known, Decimal(0)) / len(known)
        left = max(mean - sum(made, Decimal(0)), Decimal(0))
        return {"estimate_usd": format(left.quantize(Decimal("0.000001")).normalize(), "f"), "basis": basis, "recorded_calls": len(made)}
