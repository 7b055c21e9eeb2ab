"""Carrying a run on in the foreground: progress, questions, Ctrl-C, and the end."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from capataz.cli.app_port import App
from capataz.cli.entry import INTERRUPTED
from capataz.cli.output import emit_json, emit_line, stderr_line
from capataz.cli.person import can_ask, how_to_answer, put_question
from capataz.cli.progress import Progress, progress
from capataz.cli.report import run_lines
from capataz.contracts.errors import exit_code
from capataz.contracts.journal import FINAL_STATES, AskRecord, RunRecord

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Ctrl-C once (or SIGTERM, or a closed terminal) drains; twice cancels ``task`` at once."""

    def __init__(self, app: App, shown: Progress) -> None:
        self.stop = asyncio.Event()
        self.hard = False
        self.task: asyncio.Task[RunRecord] | None = None
        self._app = app
        self._shown = shown

    def __enter__(self) -> Interrupt:
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, self.hit)
        return self

    def __exit__(self, *exc: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.remove_signal_handler(number)

    def hit(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            self._shown.say("stopping at the next safe point; Ctrl-C again stops at once")
            self._app.request_drain()
        elif self.task is not None:
            self.hard = True
            self.task.cancel()


async def carry_on(app: App, run_id: str, *, as_json: bool) -> int:
    """Drives the run until it is finished or parked, prints how it stands and returns the exit code."""
    shown = progress(run_id)
    with Interrupt(app, shown) as interrupt:

        async def ask(question: AskRecord) -> Any:
            shown.pause()
            try:
                return await put_question(question, app.blobs, interrupt.stop)
            finally:
                shown.resume()

        interrupt.task = asyncio.ensure_future(app.drive(run_id, on_event=shown.heard, ask=ask if can_ask() else None))
        try:
            run = await interrupt.task
        except asyncio.CancelledError:
            if not interrupt.hard:
                raise
            shown.close()
            stderr_line(f"stopped; carry on with: capataz resume {run_id}")
            return INTERRUPTED
        finally:
            shown.close()
    await tell(app, run, as_json=as_json)
    await _hints(app, run)
    if run.state not in FINAL_STATES and interrupt.stop.is_set():
        return INTERRUPTED
    return end_code(run)


def end_code(run: RunRecord) -> int:
    """0 for a parked run; else what its outcome says."""
    if run.state not in FINAL_STATES:
        return 0
    outcome = run.outcome or {"failed": "failed", "cancelled": "cancelled"}.get(run.state)
    return exit_code(outcome, run.reason.get("code") if isinstance(run.reason, dict) else None)


async def tell(app: App, run: RunRecord, *, as_json: bool) -> None:
    """How the run stands, for people and programs: the object on stdout with ``--json``, else the report."""
    summary = await app.summary(run.run_id)
    try:
        if as_json:
            emit_json(summary)
        else:
            for line in run_lines(summary):
                emit_line(line)
    except BrokenPipeError:
        pass


async def _hints(app: App, run: RunRecord) -> None:
    """What a person can do next with a run that is not finished, or did not do what was asked."""
    if run.state == "parked":
        for question in await app.journal.asks(run_id=run.run_id):
            stderr_line("\n".join([question.question, *how_to_answer(question)]))
        for wait in run.waiting or []:
            _wait_hint(run.run_id, wait)
    if run.state not in FINAL_STATES:
        stderr_line(f"run {run.run_id} is {run.state}; carry on with: capataz resume {run.run_id}")
    elif run.outcome == "promoted":
        for row in await app.journal.effects(run.run_id):
            if row.kind == "coding.promote" and row.status == "ok" and row.result.get("note"):
                stderr_line(row.result["note"])
    elif run.outcome in {"failed", "cancelled"}:
        if isinstance(run.reason, dict) and run.reason.get("code") == "budget_exhausted":
            stderr_line(f"give it more and carry it on with: capataz topup {run.run_id} --usd X")
        stderr_line(f"look at it with: capataz show {run.run_id}; try again with: capataz resume {run.run_id}")


def _wait_hint(run_id: str, wait: dict[str, Any]) -> None:
    """How to end a wait that only a person can end."""
    if "doubt" in wait:
        stderr_line(wait["doubt"].partition(" capataz resolve")[0])
        stderr_line(f"  decide with: capataz resolve {run_id} '{wait['key']}' --redo   or   --result JSON")
    elif wait.get("on") == "budget":
        where = f"scope {wait['account']}" if wait.get("account") else "the run"
        stderr_line(f"the budget of {where} is used up ({wait.get('dimension')})\n  raise it with: capataz topup {run_id} --usd X")
