"""crashtest: a program killed at every point where that could hurt."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capataz.cli import bridge, options
from capataz.cli.output import clean, emit_json, emit_line, stderr_line
from capataz.cli.verbs.common import Json, examples
from capataz.contracts.errors import UsageError
from capataz.contracts.faults import POINTS


def add(app: typer.Typer) -> None:
    lines = ("capataz crashtest flows.py:nightly", "capataz crashtest ultracode --max-points 40", "capataz crashtest --points")
    app.command(epilog=examples(*lines))(crashtest)


def crashtest(
    program: Annotated[str | None, typer.Argument(metavar="PROGRAM", help="A name, pkg.mod:name, or file.py:name.")] = None,
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The program's input; bundled ones bring their own.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="ID", help="A (scripted) model: then with processes, a database and SIGKILL.")] = None,
    max_points: Annotated[int, typer.Option("--max-points", min=0, metavar="N", help="At most so many places to be killed at; 0 means all.")] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed kills at the same places.")] = 0,
    points: Annotated[bool, typer.Option("--points", help="List the fault points and end.")] = False,
    json: Json = False,
) -> int:
    """Kill a program at every fault point, resume it, kill it again in recovery, and see that it ends as if nothing had happened.

    Without a model it runs on fake agents in memory; its steps run for real.
    """
    if points:
        return _points(json)
    if program is None:
        raise UsageError("which program? For example: capataz crashtest flows.py:nightly")
    given = options.json_input(input)
    found = bridge.run(bridge.wiring().crashtest(options.text(program, "PROGRAM"), given, options.model(model), max_points, seed, stderr_line))
    if json:
        emit_json(found)
    else:
        _tell(found)
    return 1 if found["violations"] else 0


def _points(as_json: bool) -> int:
    if as_json:
        emit_json({"points": [{"point": name, "at": text} for name, text in POINTS.items()]})
    else:
        for name, text in POINTS.items():
            emit_line(f"{name:<26}{text}")
    return 0


def _tell(found: dict[str, Any]) -> None:
    for item in found["violations"]:
        again = f", then at {clean(item['again'])}" if item["again"] else ""
        emit_line(f"VIOLATION killed at {clean(item['point'])} ({item['number']}){again}: {clean(item['what'])}")
    emit_line(
        f"{clean(found['program'])}: {found['points']} fault points, {found['crashes']} crashes ({found['recoveries']} in recovery), {len(found['violations'])} violations "
        f"({found['mode']}, seed {found['seed']}, {found['seconds']:.0f} s)"
    )
