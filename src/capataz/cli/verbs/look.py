"""ps, show, tree, events, diff, logs: looking at runs."""

from __future__ import annotations

import asyncio
import json as json_module
from contextlib import suppress
from typing import Annotated, Any

import typer

from capataz.cli import bridge
from capataz.cli.app_port import App
from capataz.cli.output import clean, emit_bytes, emit_json, emit_line
from capataz.cli.report import run_lines
from capataz.cli.tree import tree_json, tree_lines
from capataz.cli.verbs.common import Json, RunId, examples, find_run, iso, table
from capataz.contracts.canonical import bytes_to_json
from capataz.contracts.errors import NotFound
from capataz.contracts.journal import FINAL_STATES, EffectRow, Journal, NewEvent, RunRecord

POLL_S = 1.0
"""The longest wait between looks of ``events -f``: notifications are only a hint."""


def add(app: typer.Typer) -> None:
    app.command(epilog=examples("capataz ps", "capataz ps --limit 5 --json"))(ps)
    app.command(epilog=examples("capataz show RUN", "capataz show RUN --json | jq .reason"))(show)
    app.command(epilog=examples("capataz tree RUN"))(tree)
    app.command(epilog=examples("capataz events RUN", "capataz events RUN -f --json"))(events)
    app.command(epilog=examples("capataz diff RUN | git apply --check"))(diff)
    app.command(epilog=examples("capataz logs RUN unit"))(logs)


def ps(limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many.")] = 50, json: Json = False) -> int:
    """List runs, newest first, finished ones included."""

    async def work(app: App) -> tuple[list[RunRecord], set[str]]:
        runs = await app.journal.list_runs(limit=limit)
        return runs, {run.run_id for run in runs if run.state == "running" and not await app.held(run.run_id)}

    runs, interrupted = bridge.with_app(work)
    if json:
        emit_json({"runs": [_ps_json(run) for run in runs]})
    elif runs:
        rows = [[r.run_id, r.program, _standing(r, r.run_id in interrupted), r.outcome, (iso(r.started_at or r.created_at) or "")[:19]] for r in runs]
        for line in table(rows, ["RUN", "PROGRAM", "STATE", "OUTCOME", "STARTED (UTC)"]):
            emit_line(line)
    else:
        emit_line('no runs yet; begin with: capataz do "REQUEST"')
    return 0


def _ps_json(run: RunRecord) -> dict[str, Any]:
    started = iso(run.started_at or run.created_at)
    return {"run_id": run.run_id, "program": run.program, "state": run.state, "outcome": run.outcome, "started": started}


def _standing(run: RunRecord, interrupted: bool) -> str:
    """The state for people: why a run is parked, and that a running one has lost its worker."""
    if interrupted:
        return "interrupted"
    reasons = dict.fromkeys(clean(wait["on"]) for wait in run.waiting or [] if wait.get("on")) if run.state == "parked" else {}
    return f"{run.state}: {', '.join(reasons)}" if reasons else run.state


def show(run: RunId, json: Json = False) -> int:
    """Show all that is known of a run: plan, workers, candidate, suites, reviews, digests, approval, result, usage."""

    async def work(app: App) -> dict[str, Any]:
        return await app.summary((await find_run(app.journal, run)).run_id)

    summary = bridge.with_app(work)
    if json:
        emit_json(summary)
    else:
        for line in run_lines(summary):
            emit_line(line)
    return 0


def tree(run: RunId, json: Json = False) -> int:
    """Show a run's effects as a tree: scopes, agents, their model and tool calls, steps, questions."""

    async def work(app: App) -> tuple[str, list[EffectRow], dict[str, Any]]:
        run_id = (await find_run(app.journal, run)).run_id
        return run_id, await app.journal.effects(run_id), await app.usage_by(run_id) if json else {}

    run_id, rows, usage = bridge.with_app(work)
    if json:
        emit_json({"run_id": run_id, "tree": tree_json(rows), "usage_by": usage})
    else:
        for line in tree_lines(run_id, rows):
            emit_line(line)
    return 0


def events(
    run: RunId, follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False, json: Json = False
) -> int:
    """Print a run's events, one a line."""

    async def work(app: App) -> None:
        run_id = (await find_run(app.journal, run)).run_id
        hint = asyncio.Event()
        listener = asyncio.ensure_future(_listen(app.journal, run_id, hint)) if follow else None
        try:
            await _print_events(app.journal, run_id, follow=follow, hint=hint, as_json=json)
        finally:
            if listener is not None:
                listener.cancel()
                with suppress(asyncio.CancelledError):
                    await listener

    bridge.with_app(work)
    return 0


async def _listen(journal: Journal, run_id: str, hint: asyncio.Event) -> None:
    async for heard in journal.listen():
        if heard == run_id:
            hint.set()


async def _print_events(journal: Journal, run_id: str, *, follow: bool, hint: asyncio.Event, as_json: bool) -> None:
    after = 0
    while True:
        hint.clear()
        ended = (await journal.get_run(run_id)).state in FINAL_STATES
        while batch := await journal.events(run_id, after=after):
            for event in batch:
                _print_event(event, as_json)
            after = batch[-1].seq
        if ended or not follow:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await hint.wait()


def _print_event(event: NewEvent, as_json: bool) -> None:
    if as_json:
        emit_json({"seq": event.seq, "type": event.type, "at": iso(event.at), "effect": event.effect, "data": event.data})
        return
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    said = " ".join(f"{key}={_short(value)}" for key, value in data.items() if value is not None)
    emit_line(f"{event.seq:>5} {(iso(event.at) or '')[11:23]} {event.type} {said}")


def _short(value: Any) -> str:
    text = clean(value if isinstance(value, str) else json_module.dumps(value, ensure_ascii=False))
    return text if len(text) <= 80 else text[:79] + "…"


def diff(run: RunId, json: Json = False) -> int:
    """Print the last candidate's whole diff against the base the run began with."""

    async def work(app: App) -> tuple[str, dict[str, Any], bytes]:
        run_id = (await find_run(app.journal, run)).run_id
        candidate = await _last(app.journal, run_id, "coding.compose", "candidate")
        return run_id, candidate, await app.blobs.get(candidate["diff_uri"])

    run_id, candidate, data = bridge.with_app(work)
    if json:
        emit_json({"run_id": run_id, "candidate": candidate["sha"], "uri": candidate["diff_uri"], "diff": bytes_to_json(data)})
    else:
        emit_bytes(data)
    return 0


def logs(run: RunId, suite: Annotated[str, typer.Argument(metavar="SUITE", help="The suite's id.")], json: Json = False) -> int:
    """Print what a suite wrote when it ran on the last tested candidate."""

    async def work(app: App) -> tuple[str, dict[str, Any], bytes]:
        run_id = (await find_run(app.journal, run)).run_id
        report = await _last(app.journal, run_id, "coding.test", "test report")
        found = next((entry for entry in report["suites"] if entry["id"] == suite), None)
        if found is None:
            known = ", ".join(entry["id"] for entry in report["suites"]) or "none"
            raise NotFound(f"run {run_id} has no suite {suite!r}; it ran: {known}")
        return run_id, found, await app.blobs.get(found["artifact_uri"])

    run_id, found, data = bridge.with_app(work)
    if json:
        emit_json({"run_id": run_id, "suite": suite, "exit_code": found["exit_code"], "artifact": found["artifact_uri"], "log": bytes_to_json(data)})
    else:
        emit_bytes(data)
    return 0


async def _last(journal: Journal, run_id: str, kind: str, what: str) -> dict[str, Any]:
    rows = [row for row in await journal.effects(run_id) if row.kind == kind and row.status == "ok"]
    if not rows:
        raise NotFound(f"run {run_id} has no {what} (yet)")
    return rows[-1].result
