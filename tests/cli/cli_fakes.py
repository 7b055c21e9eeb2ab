"""An app and a wiring in memory: what the command line talks to, without database, sandbox or model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from capataz.contracts.errors import AlreadyAnswered, NotFound
from capataz.contracts.journal import AskRecord, EffectRow, NewEvent, RunRecord, Usage
from capataz.wiring.summary import summarise

RUN = "r0123456789abcdef"


def run_record(**changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run_id": RUN, "program": "ultracode", "state": "queued", "outcome": None, "reason": None, "input": {}, "options": {},
        "result": None, "source_digest": "0" * 64, "generation": 0, "parent_run": None, "tenant": "local", "repository": None,
        "created_at": 1_700_000_000.0, "started_at": 1_700_000_001.0, "ended_at": None, "ready_at": None, "waiting": None, "last_event": 0,
    }  # fmt: skip
    return RunRecord(**{**values, **changes})


def effect(kind: str, name: str = "", *, key: str | None = None, **changes: Any) -> EffectRow:
    scope = changes.get("scope", "")
    values: dict[str, Any] = {
        "generation": 0, "key": key or f"{scope}/{kind}:{name}#0.0", "parent": None, "scope": scope, "kind": kind, "name": name,
        "input_digest": "0" * 64, "ordinal": 0, "request_no": 0, "delivery_no": 0, "status": "ok", "input": {}, "result": None,
        "error": None, "usage": Usage(), "started_at": 1.0, "ended_at": 2.0, "repeated": False, "reused_from": None,
        "start_tree": None, "end_tree": None, "worker": "w", "epoch": 1,
    }  # fmt: skip
    return EffectRow(**{**values, **changes})


def ask_record(**changes: Any) -> AskRecord:
    values: dict[str, Any] = {
        "ask_id": "a1", "run_id": RUN, "effect": "ask:#0.0", "kind": "approval", "question": "Promote?", "options": ["approve", "decline"],
        "schema": None, "context": {}, "approvers": (), "channel": None, "risk": None, "binding": "ab" * 32, "opened_at": 1_700_000_002.0,
        "expires_at": None, "answer": None, "answered_by": None, "answered_at": None, "answer_channel": None, "note": None, "closed": None,
    }  # fmt: skip
    return AskRecord(**{**values, **changes})


class FakeJournal:
    def __init__(self) -> None:
        self.runs: dict[str, RunRecord] = {RUN: run_record()}
        self.rows: list[EffectRow] = []
        self.log: list[NewEvent] = []
        self.questions: dict[str, AskRecord] = {}

    async def get_run(self, run_id: str) -> RunRecord:
        if run_id not in self.runs:
            raise NotFound(f"no run {run_id}")
        return self.runs[run_id]

    async def list_runs(self, *, limit: int = 50, tenant: str | None = None, parent_run: str | None = None) -> list[RunRecord]:
        return list(self.runs.values())[:limit]

    async def effects(self, run_id: str, *, generation: int | None = None) -> list[EffectRow]:
        return self.rows

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[NewEvent]:
        return [event for event in self.log if event.seq > after][:limit]

    async def asks(self, *, run_id: str | None = None, open_only: bool = True) -> list[AskRecord]:
        return [a for a in self.questions.values() if not open_only or (a.answer is None and a.closed is None)]

    async def get_ask(self, ask_id: str) -> AskRecord:
        if ask_id not in self.questions:
            raise NotFound(f"no ask {ask_id}")
        return self.questions[ask_id]

    async def listen(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""


class FakeBlobs:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def get(self, uri: str) -> bytes:
        return self.kept[uri]


class FakeApp:
    """``drives``: what each ``drive`` does to the run; ``calls``: what the command line asked for."""

    home = Path("/nowhere")

    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.blobs = FakeBlobs()
        self.calls: list[tuple[Any, ...]] = []
        self.end: dict[str, Any] = {"state": "completed", "outcome": "promoted", "ended_at": 1_700_000_010.0}
        self.live_holder = False
        self.fail: Exception | None = None
        self.hang: asyncio.Event | None = None

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fail is not None:
            raise self.fail

    async def start_do(self, request: Any) -> str:
        self._called("do", request)
        return RUN

    async def start_program(self, request: Any) -> str:
        self._called("run", request)
        return RUN

    async def drive(self, run_id: str, *, on_event: Any = None, ask: Any = None) -> RunRecord:
        self._called("drive", run_id)
        for event in self.journal.log:
            if on_event:
                on_event(event)
        self.journal.runs[run_id] = replace(self.journal.runs[run_id], **self.end)
        return self.journal.runs[run_id]

    async def detach(self, run_id: str) -> None:
        self._called("detach", run_id)

    async def held(self, run_id: str) -> bool:
        return self.live_holder

    async def usage_by(self, run_id: str) -> dict[str, Any]:
        return {"agent": {}, "program": {}}

    async def summary(self, run_id: str) -> dict[str, Any]:
        run = await self.journal.get_run(run_id)
        usage = Usage(usd=Decimal("0.5"), model_calls=2)
        return summarise(run, self.journal.rows, list(self.journal.questions.values()), usage, now=1_700_000_020.0)

    async def answer(self, ask_id: str, value: Any, *, by: str, channel: str, note: str | None) -> AskRecord:
        self._called("answer", ask_id, value, channel, note)
        ask = await self.journal.get_ask(ask_id)
        if ask.answer is not None:
            raise AlreadyAnswered("it has a decision")
        self.journal.questions[ask_id] = replace(ask, answer=value, answered_by=by, answered_at=3.0, answer_channel=channel)
        return self.journal.questions[ask_id]

    async def cancel(self, run_id: str, *, reason: str) -> RunRecord:
        self._called("cancel", run_id, reason)
        self.journal.runs[run_id] = replace(self.journal.runs[run_id], state="cancelled", outcome="cancelled")
        return self.journal.runs[run_id]

    async def pause(self, run_id: str, *, agent: str | None) -> None:
        self._called("pause", run_id, agent)

    async def notify(self, run_id: str, text: str, *, agent: str | None) -> None:
        self._called("notify", run_id, text, agent)

    async def differs(self, run_id: str) -> str | None:
        return None

    async def prepare_resume(self, run_id: str, *, with_file: Path | None, accept_orphans: bool = False) -> None:
        self._called("prepare_resume", run_id, with_file)

    async def plan(self, run_id: str, *, with_file: str | None) -> dict[str, Any]:
        self._called("plan", run_id, with_file)
        agent = {"key": "agent:a#0.0", "kind": "agent", "name": "a", "agent": "s/a", "site": "f.py:3"}
        return {
            "run_id": run_id, "complete": True, "error": None, "reused": [{**agent, "usd": "0.25"}],
            "run": [{**agent, "why": "changed", "estimate_usd": "0.5", "basis": "same name", "recorded_calls": 0}],
            "orphans": [{"key": "step:d#0.0", "kind": "step", "name": "d", "status": "ok", "external": True, "certain": True}],
            "undecided": [], "price": {"saved_usd": "0.25", "estimate_usd": "0.5", "unknown": 0, "at_least": False}, "with": with_file,
        }

    async def fork(self, run_id: str, key: str) -> str:
        self._called("fork", run_id, key)
        self.journal.runs["r1123456789abcdef"] = run_record(run_id="r1123456789abcdef", parent_run=run_id)
        return "r1123456789abcdef"

    async def resolve(self, run_id: str, key: str, decision: dict[str, Any]) -> None:
        self._called("resolve", run_id, key, decision)

    async def topup(self, run_id: str, amounts: dict[str, str], *, scope: str | None) -> str:
        self._called("topup", run_id, amounts, scope)
        return scope or ""

    async def gc(self) -> dict[str, Any]:
        return {"removed": ["x"], "freed_bytes": 3, "kept": 0}

    def request_drain(self) -> None:
        self._called("drain")


class FakeDatabase:
    async def start(self) -> str:
        return "postgresql:///x"

    async def stop(self) -> bool:
        return True

    async def url(self) -> str:
        return "postgresql:///x"

    async def migrate(self) -> dict[str, Any]:
        return {"from": None, "to": "0001"}

    async def backup(self, target: Path) -> dict[str, Any]:
        return {"file": str(target), "bytes": 1}

    async def restore(self, source: Path) -> dict[str, Any]:
        return {"file": str(source)}


class FakeWiring:
    def __init__(self, app: FakeApp) -> None:
        self.app = app
        self.healthy = True

    @asynccontextmanager
    async def open_app(self, *, home: Path | None = None) -> AsyncIterator[FakeApp]:
        yield self.app

    def open_database(self, *, home: Path | None = None) -> FakeDatabase:
        return FakeDatabase()

    async def doctor(self, *, home: Path | None = None) -> dict[str, Any]:
        check = {"name": "git", "ok": self.healthy, "detail": "2.39", "fix": None if self.healthy else "install git"}
        return {"ok": self.healthy, "checks": [check], "sandboxes": []}

    async def programs(self) -> list[dict[str, Any]]:
        return [{"name": "ultracode", "source": "bundled", "summary": "Plans."}]

    async def models(self) -> list[dict[str, Any]]:
        return [{"model": "fast", "usable": False, "why": "no key", "input_usd_per_mtok": None, "output_usd_per_mtok": None, "window": None}]

    async def prompts(self) -> list[dict[str, Any]]:
        return [{"name": "planner", "source": "bundled", "text": "You plan."}]
