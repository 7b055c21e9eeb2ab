"""doctor, gc, programs, models, prompts, crashtest: the machine and what is installed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capataz.cli import bridge
from capataz.cli.app_port import App
from capataz.cli.output import clean, emit_json, emit_line
from capataz.cli.verbs.common import Json, examples, table
from capataz.contracts.errors import NotFound, UsageError


def add(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(gc)
    app.command()(programs)
    app.command()(models)
    app.command(epilog=examples("capataz prompts", "capataz prompts planner"))(prompts)
    app.command(epilog=examples("capataz crashtest --points", 'CAPATAZ_FAULT=promote.after:1 capataz do "..."'))(crashtest)


def doctor(json: Json = False) -> int:
    """Check this machine: git, database, sandboxes and what each enforces, models. Exit code 3 when a job could not run."""
    found = bridge.run(bridge.wiring().doctor())
    if json:
        emit_json(found)
        return 0 if found["ok"] else 3
    for check in found["checks"]:
        emit_line(f"{'ok  ' if check['ok'] else 'FAIL'}  {clean(check['name'])}: {clean(check['detail'])}")
        if not check["ok"] and check.get("fix"):
            emit_line(f"      {clean(check['fix'])}")
    for box in found["sandboxes"]:
        state = "default" if box["default"] else "usable" if box["usable"] else "not usable"
        emit_line(f"sandbox {clean(box['backend'])}: {state}; {clean(box['detail'])}")
        if box["enforces"]:
            emit_line(f"      enforces {clean(', '.join(box['enforces']))}")
    return 0 if found["ok"] else 3


def gc(json: Json = False) -> int:
    """Remove what finished runs and crashes left: workspaces, checkouts, objects that nothing refers to."""

    async def work(app: App) -> dict[str, Any]:
        return await app.gc()

    done = bridge.with_app(work)
    if json:
        emit_json(done)
    else:
        emit_line(f"removed {len(done['removed'])}, freed {done['freed_bytes']} bytes, kept {done['kept']}")
    return 0


def programs(json: Json = False) -> int:
    """List the programs that can be run by name."""
    found = bridge.run(bridge.wiring().programs())
    if json:
        emit_json({"programs": found})
    else:
        for line in table([[p["name"], p["source"], p["summary"]] for p in found], ["PROGRAM", "SOURCE", "WHAT IT DOES"]):
            emit_line(line)
    return 0


def models(json: Json = False) -> int:
    """List models and aliases: which are usable here, their prices and context windows."""
    found = bridge.run(bridge.wiring().models())
    if json:
        emit_json({"models": found})
        return 0
    rows = [
        [m["model"], "yes" if m["usable"] else "no", m.get("input_usd_per_mtok"), m.get("output_usd_per_mtok"), m.get("window"), m.get("why") or ""]
        for m in found
    ]
    for line in table(rows, ["MODEL", "USABLE", "$/M IN", "$/M OUT", "WINDOW", "WHY"]):
        emit_line(line)
    return 0


def prompts(name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this prompt's text.")] = None, json: Json = False) -> int:
    """List the prompts of the bundled programs and where each comes from."""
    found = bridge.run(bridge.wiring().prompts())
    if name is not None:
        found = [prompt for prompt in found if prompt["name"] == name]
        if not found:
            raise NotFound(f"there is no prompt {name!r}; `capataz prompts` lists them")
    if json:
        emit_json({"prompts": found})
    elif name is not None:
        emit_line(found[0]["text"])
    else:
        for line in table([[p["name"], p["source"]] for p in found], ["PROMPT", "SOURCE"]):
            emit_line(line)
    return 0


def crashtest(
    points: Annotated[bool, typer.Option("--points", help="List the points where CAPATAZ_FAULT=POINT[:N] kills the process.")] = False, json: Json = False
) -> int:
    """List the fault points: before and after every journal commit and every external effect."""
    from capataz.contracts.faults import POINTS

    if not points:
        raise UsageError("say --points: it lists where CAPATAZ_FAULT=POINT[:N] kills the process")
    if json:
        emit_json({"points": [{"point": name, "where": where} for name, where in POINTS.items()]})
    else:
        for line in table([[name, where] for name, where in POINTS.items()], ["POINT", "WHERE"]):
            emit_line(line)
    return 0
