"""cancel, pause, notify: acting on a run that another process may hold."""

from __future__ import annotations

from typing import Annotated

import typer

from capataz.cli import bridge, options
from capataz.cli.app_port import App
from capataz.cli.output import emit_json, emit_line
from capataz.cli.verbs.common import Json, RunId, examples, find_run
from capataz.contracts.errors import RunNotResumable
from capataz.contracts.journal import FINAL_STATES, RunRecord

Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="One agent, by its scoped name (round-0/worker:api).")]


def add(app: typer.Typer) -> None:
    app.command(epilog=examples('capataz cancel RUN --reason "wrong branch"'))(cancel)
    app.command(epilog=examples("capataz pause RUN", "capataz pause RUN --agent round-0/worker:api"))(pause)
    app.command(epilog=examples('capataz notify RUN "Keep the old name as an alias" --agent round-0/worker:api'))(notify)


def cancel(
    run: RunId, reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with the outcome.")] = "cancelled by a person", json: Json = False
) -> int:
    """Cancel a run: agents and their processes are ended, workspaces removed. It may be resumed."""

    async def work(app: App) -> RunRecord:
        found = await _live(app, run, "cancelled")
        return await app.cancel(found.run_id, reason=options.text(reason, "--reason"))

    done = bridge.with_app(work)
    if json:
        emit_json({"run_id": done.run_id, "state": done.state, "outcome": done.outcome})
    else:
        emit_line(f"run {done.run_id} is {done.state}")
    return 0


def pause(run: RunId, agent: Agent = None, json: Json = False) -> int:
    """Pause a run (or one agent) at its next safe point; resume carries it on."""

    async def work(app: App) -> str:
        found = await _live(app, run, "paused")
        await app.pause(found.run_id, agent=agent)
        return found.run_id

    run_id = bridge.with_app(work)
    if json:
        emit_json({"run_id": run_id, "agent": agent, "paused": True})
    else:
        emit_line(f"{agent or 'run ' + run_id} pauses at its next safe point; carry on with: capataz resume {run_id}")
    return 0


def notify(run: RunId, text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")], agent: Agent = None, json: Json = False) -> int:
    """Send a message to a run or one of its agents; an agent sees it before its next model call, exactly once."""
    message = options.text(text, "TEXT")

    async def work(app: App) -> str:
        found = await _live(app, run, "told anything")
        await app.notify(found.run_id, message, agent=agent)
        return found.run_id

    run_id = bridge.with_app(work)
    if json:
        emit_json({"run_id": run_id, "agent": agent, "sent": True})
    else:
        emit_line(f"sent to {agent or 'run ' + run_id}")
    return 0


async def _live(app: App, run_id: str, what: str) -> RunRecord:
    found = await find_run(app.journal, run_id)
    if found.state in FINAL_STATES:
        raise RunNotResumable(f"run {found.run_id} is {found.state} and cannot be {what}")
    return found
