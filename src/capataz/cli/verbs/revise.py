"""plan, fork: what an edit would do, and another way from some point of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from capataz.cli import bridge, options
from capataz.cli.app_port import App
from capataz.cli.foreground import carry_on, tell
from capataz.cli.output import clean, emit_json, emit_line, stderr_line
from capataz.cli.verbs.common import Json, RunId, examples, find_run, table


def add(app: typer.Typer) -> None:
    app.command(epilog=examples("capataz plan RUN --with edited.py", "capataz plan RUN --with edited.py --json | jq .price"))(plan)
    app.command(epilog=examples("capataz tree RUN --json        # shows the keys", "capataz fork RUN --at 'agent:judge#0123456789abcdef.0'"))(fork)


def plan(
    run: RunId,
    with_file: Annotated[str | None, typer.Option("--with", metavar="FILE", help="The edited program; the run's own sources by default.")] = None,
    json: Json = False,
) -> int:
    """Show what a resume with an edited program would reuse, run and orphan, and its price. Nothing is run or changed."""

    async def work(app: App) -> dict[str, Any]:
        found = await find_run(app.journal, run)
        return await app.plan(found.run_id, with_file=None if with_file is None else options.text(with_file, "--with"))

    made = bridge.with_app(work)
    if json:
        emit_json(made)
    else:
        for line in plan_lines(made):
            emit_line(line)
    return 0


def plan_lines(made: dict[str, Any]) -> Iterator[str]:
    """The plan as a table, what is run first."""
    rows = [["run", _what(item), item["why"], _usd(item.get("estimate_usd"))] for item in made["run"]]
    rows += [["reuse", _what(item), "", _usd(item["usd"])] for item in made["reused"]]
    rows += [["orphan", _what(item), _lost(item), ""] for item in made["orphans"]]
    rows += [["open", _what(item), "reused if it is asked for again", ""] for item in made["undecided"]]
    yield from table(rows, ["PLAN", "EFFECT", "WHY", "USD"])
    price = made["price"]
    least = "at least " if price["at_least"] else ""
    unknown = f", {price['unknown']} agents without a known price" if price["unknown"] else ""
    yield f"{len(made['run'])} to run for {least}${clean(price['estimate_usd'])}{unknown}; {len(made['reused'])} reused, worth ${clean(price['saved_usd'])}"
    if made["error"]:
        yield f"the program would fail: {clean(made['error']['message'])}"
    elif not made["complete"]:
        yield "what follows from the results of these runs is not known yet"


def _what(item: dict[str, Any]) -> str:
    return f"{item['kind']} {item.get('agent') or item['name']}".strip()


def _lost(item: dict[str, Any]) -> str:
    said = ["took effect outside"] if item["external"] else []
    return ", ".join(said if item["certain"] else [*said, "unless it is asked for later"])


def _usd(amount: Any) -> str:
    return "" if amount is None else f"${amount}"


def fork(
    run: RunId,
    at: Annotated[str, typer.Option("--at", metavar="KEY", help="The effect whose result is the last to be taken over (capataz tree RUN --json).")],
    detach: Annotated[bool, typer.Option("--detach", help="Leave the new run to a process of its own and return its id.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Only make the new run; resume carries it on.")] = False,
    json: Json = False,
) -> int:
    """Begin a new run with all results of another up to and including one effect; what came after is done anew."""

    async def work(app: App) -> int:
        found = await find_run(app.journal, run)
        forked = await app.fork(found.run_id, options.text(at, "--at"))
        stderr_line(f"run {forked}")
        if not (detach or no_run):
            return await carry_on(app, forked, as_json=json)
        if detach:
            await app.detach(forked)
        await tell(app, await app.journal.get_run(forked), as_json=json)
        return 0

    return bridge.with_app(work)
