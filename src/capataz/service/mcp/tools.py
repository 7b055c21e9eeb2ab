"""What a model may do with programs and runs. Each method is one tool: its docstring is what the model reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue, to_json
from capataz.contracts.errors import NotFound, UsageError
from capataz.contracts.jobs import ProgramRequest
from capataz.contracts.journal import FINAL_STATES, RunRecord
from capataz.service.mcp import written
from capataz.service.mcp.carrier import Carrier
from capataz.wiring.app import App, programs
from capataz.wiring.checking import check_program

LONGEST_WAIT_S = 50.0
_TICK_S = 0.1
_BY = "mcp"


class Tools:
    """``model``: what runs use when the caller names none. ``trusted``: installed programs that the person lets run outside a sandbox,
    with any input that a model gives them; some run commands that their input names."""

    def __init__(self, app: App, carrier: Carrier, model: str | None, trusted: frozenset[str] = frozenset()) -> None:
        self._trusted = trusted
        self._app = app
        self._carrier = carrier
        self._model = model

    def all(self) -> list[Callable[..., Awaitable[dict[str, Any]]]]:
        return [
            self.list_programs, self.list_runs, self.check, self.write_program, self.start, self.watch, self.notify, self.answer,
            self.cancel, self.fork,
        ]  # fmt: skip

    # ---- programs ------------------------------------------------------------------------------

    async def list_programs(self) -> dict[str, Any]:
        """Programs that can be started by name: bundled ones, installed ones, and those written with write_program."""
        return {"programs": await programs(), "written": written.listed(self._app.home)}

    async def check(self, program: str) -> dict[str, Any]:
        """Checks a program without running it: errors and warnings with line and fix, and the most agents, turns and money it can use."""
        name, _ = await self._named(program)
        return (await asyncio.to_thread(check_program, name)).to_json()

    async def write_program(self, name: str, source: str) -> dict[str, Any]:
        """Stores a program (Python source with `@program async def NAME`) and checks it. It runs in a sandbox. An existing one is replaced."""
        path = written.write(self._app.home, name, source)
        return {"program": name, "path": str(path), "check": await self.check(name)}

    # ---- runs ----------------------------------------------------------------------------------

    async def start(self, program: str, input: Any = None, model: str | None = None, budget_usd: str | None = None) -> dict[str, Any]:
        """Starts a program by name in the background; watch its run_id. budget_usd is the most money that it may use."""
        name, untrusted = await self._named(program)
        if model is not None and model.startswith("scripted:"):
            raise UsageError("a scripted model is code; only the person who starts the server may name one")
        if untrusted and (errors := (await asyncio.to_thread(check_program, name)).errors):
            raise UsageError(f"{program} has {len(errors)} errors, the first: {errors[0]}; see check")
        run_id = await self._app.start_program(ProgramRequest(
            program=name, input=to_json(input), model=model or self._model, budget_usd=_money(budget_usd), untrusted=untrusted,
        ))
        self._carrier.carry(run_id)
        return {"run_id": run_id}

    async def list_runs(self, limit: int = 20) -> dict[str, Any]:
        """The newest runs with their states."""
        return {"runs": [_line(run) for run in await self._app.journal.list_runs(limit=max(1, min(limit, 200)))]}

    async def watch(self, run_id: str, after: int = 0, wait_s: float = 20.0) -> dict[str, Any]:
        """Waits until a run has news after event number `after` (or ends, or wait_s is over), and tells its state, events, open questions,
        and at the end its result or the reason of its failure. Call again with the returned `next`."""
        deadline = asyncio.get_running_loop().time() + max(0.0, min(wait_s, LONGEST_WAIT_S))
        while True:
            run = await self._app.journal.get_run(run_id)
            events = await self._app.journal.events(run_id, after=after, limit=200)
            if events or run.state in FINAL_STATES or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(_TICK_S)
        asks = await self._app.journal.asks(run_id=run_id)
        found = {
            **_line(run), "reason": run.reason, "events": [to_json(_event(event)) for event in events],
            "asks": [{"ask_id": a.ask_id, "kind": a.kind, "question": a.question, "options": a.options} for a in asks],
            "next": events[-1].seq if events else after,
        }  # fmt: skip
        if run.state in FINAL_STATES:
            found["result"] = (await self._app.summary(run_id))["result"]
        if trouble := self._carrier.troubles.get(run_id):
            found["trouble"] = trouble
        return found

    async def notify(self, run_id: str, text: str, agent: str | None = None) -> dict[str, Any]:
        """Sends a message to a run's inbox, or to one of its agents, which reads it at its next model call."""
        await self._app.notify(run_id, text, agent=agent)
        self._carrier.carry(run_id)
        return {"run_id": run_id, "sent": True}

    async def answer(self, ask_id: str, value: Any, note: str | None = None) -> dict[str, Any]:
        """Answers an open question of a run, once. What names approvers or approves a promotion is for people, and refused here."""
        if (await self._app.journal.get_ask(ask_id)).binding is not None:
            raise UsageError(f"{ask_id} approves the promotion of a candidate; a person answers it with `capataz answer {ask_id} approve`")
        answered = await self._app.answer(ask_id, to_json(value), by=_BY, channel=_BY, note=note)
        self._carrier.carry(answered.run_id)
        return {"ask_id": ask_id, "run_id": answered.run_id, "answer": answered.answer}

    async def cancel(self, run_id: str, reason: str = "") -> dict[str, Any]:
        """Cancels a run with all that it started."""
        await self._app.post_cancel(run_id, reason=reason or "cancelled over MCP")
        self._carrier.carry(run_id)
        run = await self._app.journal.get_run(run_id)
        for _ in range(int(LONGEST_WAIT_S / _TICK_S)):
            if run.state in FINAL_STATES or run_id in self._carrier.troubles:
                break
            await asyncio.sleep(_TICK_S)
            run = await self._app.journal.get_run(run_id)
        return _line(run)

    async def fork(self, run_id: str, key: str) -> dict[str, Any]:
        """Starts a new run that keeps all results of a run up to and including the effect with this key (see the journal resource)."""
        forked = await self._app.fork(run_id, key)
        self._carrier.carry(forked)
        return {"run_id": forked, "parent": run_id}

    # ---- resources -----------------------------------------------------------------------------

    async def journal(self, run_id: str) -> list[JsonValue]:
        """The effects of a run in order."""
        rows = await self._app.effects(run_id)
        return [to_json({
            "key": r.key, "parent": r.parent, "kind": r.kind, "name": r.name, "status": r.status, "result": r.result, "error": r.error,
        }) for r in rows]  # fmt: skip

    async def transcript(self, run_id: str) -> list[JsonValue]:
        """What a run's agents, their models and tools were asked and said."""
        rows = await self._app.effects(run_id)
        return [
            to_json({"key": r.key, "agent": r.parent, "kind": r.kind, "name": r.name, "input": r.input, "result": r.result, "error": r.error})
            for r in rows if r.kind in ("agent", "model", "tool")
        ]

    async def _named(self, program: str) -> tuple[str, bool]:
        """What ``find`` takes, and whether nobody vouches for it. Only names are taken: a path could be any file."""
        if any(found["name"] == program for found in await programs()):
            return program, program not in self._trusted
        path = written.place(self._app.home, program)
        if path is None:
            raise NotFound(f"there is no program {program!r}; list_programs has the names, write_program makes one")
        _, colon, function = program.partition(":")
        return f"{path}{colon}{function}", True


def _line(run: RunRecord) -> dict[str, Any]:
    return {"run_id": run.run_id, "program": Path(run.program).name, "state": run.state, "outcome": run.outcome}


def _event(event: Any) -> dict[str, Any]:
    return {"seq": event.seq, "type": event.type, "effect": event.effect, "data": event.data}


def _money(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite() or amount <= 0:
        raise UsageError(f"budget_usd {text!r} is no amount of money above 0")
    return amount
