"""The verbs, put together."""

from __future__ import annotations

import typer

from capataz.cli.verbs import asks, check, crashtest, database, demo, host, look, mcp, mend, revise, start, steer
from capataz.cli.verbs.groups import VerbGroup
from capataz.cli.version import VERSION

app = typer.Typer(
    name="capataz",
    cls=VerbGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Capataz is the foreman of coding agents: it plans, isolates, tests, reviews and promotes what you approve.",
    epilog=(
        "\b\nBegin with:\n"
        "  capataz demo                             see it work, without a provider\n"
        "  capataz doctor                           what this machine can do\n"
        '  capataz do "Fix the failing test"        a job on the repository in this folder\n\n'
        "\b\nEvery verb explains itself: capataz VERB --help. --json prints one JSON object on stdout; --debug shows tracebacks.\n"
        "Exit codes: 0 promoted, report or success; 1 failed; 2 declined; 3 provider or environment; 64 wrong use; 130 cancelled."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capataz {VERSION}")
        raise typer.Exit


@app.callback()
def root(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(False, "--version", "-V", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


start.add(app)
look.add(app)
check.add(app)
asks.add(app)
steer.add(app)
revise.add(app)
mend.add(app)
host.add(app)
database.add(app)
demo.add(app)
crashtest.add(app)
mcp.add(app)
