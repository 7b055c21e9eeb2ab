"""resolve, topup: what a run needs from a person besides answers."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer

from capataz.cli import bridge, options
from capataz.cli.app_port import App
from capataz.cli.foreground import carry_on, tell
from capataz.cli.output import stderr_line
from capataz.cli.verbs.common import Json, RunId, examples, find_run
from capataz.contracts import units
from capataz.contracts.errors import UsageError

_Count = typer.Option(min=1, metavar="N")


def add(app: typer.Typer) -> None:
    app.command(epilog=examples("capataz resolve RUN 'step:pay#0123456789abcdef.0' --redo", "capataz resolve RUN KEY --result '{\"receipt\": 7}'"))(resolve)
    app.command(epilog=examples("capataz topup RUN --usd 2.50", "capataz topup RUN --turns 40 --scope round-1"))(topup)


def resolve(
    run: RunId,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The effect in doubt (capataz show RUN names it).")],
    redo: Annotated[bool, typer.Option("--redo", help="It did not happen: do it again.")] = False,
    result: Annotated[str | None, typer.Option("--result", metavar="JSON", help="It happened: this was its result.")] = None,
    json: Json = False,
) -> int:
    """Say what became of an effect that was under way when its worker died; without a live worker the run is carried on here."""
    if redo == (result is not None):
        raise UsageError("say either --redo (it did not happen) or --result JSON (it did)")
    decision: dict[str, Any] = {"redo": True} if result is None else {"result": _json(result)}

    async def work(app: App) -> int:
        found = await find_run(app.journal, run)
        await app.resolve(found.run_id, options.text(key, "KEY"), decision)
        return await _go_on(app, found.run_id, "stored", as_json=json)

    return bridge.with_app(work)


def _json(text: str) -> Any:
    try:
        return json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--result is no JSON: {error}") from None


def topup(
    run: RunId,
    usd: Annotated[str | None, typer.Option("--usd", metavar="X", help="Dollars to add.")] = None,
    tokens: Annotated[int | None, _Count] = None,
    turns: Annotated[int | None, _Count] = None,
    agents: Annotated[int | None, _Count] = None,
    tool_calls: Annotated[int | None, _Count] = None,
    wall: Annotated[str | None, typer.Option("--wall", metavar="30m", help="Running time to add.")] = None,
    sandbox: Annotated[str | None, typer.Option("--sandbox", metavar="10m", help="Sandbox time to add.")] = None,
    scope: Annotated[str | None, typer.Option("--scope", metavar="PATH", help="The scope whose budget it is; the one that the run waits for by default.")] = None,
    json: Json = False,
) -> int:
    """Raise a budget; a run that waits for it, or failed because of it, goes on."""
    times = {"wall_s": options.duration(wall), "sandbox_s": options.duration(sandbox)}
    counts = {"tokens": tokens, "turns": turns, "agents": agents, "tool_calls": tool_calls}
    amounts = {name: str(value) for name, value in {**counts, **times}.items() if value is not None}
    if usd is not None:
        amounts["usd"] = _positive(usd)
    if not amounts:
        raise UsageError("say what to add, for example --usd 2.50")

    async def work(app: App) -> int:
        found = await find_run(app.journal, run)
        account = await app.topup(found.run_id, amounts, scope=scope)
        return await _go_on(app, found.run_id, f"budget of {f'scope {account}' if account else 'the run'} raised", as_json=json)

    return bridge.with_app(work)


def _positive(text: str) -> str:
    amount = units.usd(text)
    if amount <= 0:
        raise UsageError(f"--usd {text!r}: give more than nothing")
    return str(amount)


async def _go_on(app: App, run_id: str, said: str, *, as_json: bool) -> int:
    """Carries the run on here, unless a live worker does."""
    if not await app.held(run_id):
        await app.prepare_resume(run_id, with_file=None)
        return await carry_on(app, run_id, as_json=as_json)
    stderr_line(f"{said}; the worker that holds run {run_id} carries it on")
    await tell(app, await app.journal.get_run(run_id), as_json=as_json)
    return 0
