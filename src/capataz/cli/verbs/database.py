"""db start|stop|url|migrate|backup|restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from capataz.cli import bridge, options
from capataz.cli.output import emit_json, emit_line
from capataz.cli.verbs.common import Json, examples

db = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The database: an embedded PostgreSQL in CAPATAZ_HOME, or the one that CAPATAZ_DATABASE_URL names.",
    epilog=examples("capataz db url", "psql $(capataz db url)", "capataz db backup before-upgrade.dump"),
)


def add(app: typer.Typer) -> None:
    app.add_typer(db, name="db")


@db.command()
def start(json: Json = False) -> int:
    """Start the embedded server if it does not run. Every verb does so when it needs it."""
    return _say({"url": bridge.with_database(lambda database: database.start())}, json)


@db.command()
def stop(json: Json = False) -> int:
    """Stop the embedded server; runs that are under way lose their database."""
    stopped = bridge.with_database(lambda database: database.stop())
    return _say({"stopped": stopped}, json, "stopped" if stopped else "it did not run")


@db.command()
def url(json: Json = False) -> int:
    """Print the database's URL."""
    return _say({"url": bridge.with_database(lambda database: database.url())}, json)


@db.command()
def migrate(json: Json = False) -> int:
    """Bring the schema to this version's. Every verb does so when it needs it."""
    done = bridge.with_database(lambda database: database.migrate())
    return _say(done, json, f"schema at {done['to']}")


@db.command()
def backup(target: Annotated[str, typer.Argument(metavar="FILE", help="A file that does not exist yet.")], json: Json = False) -> int:
    """Write all of the database into one file, while it is in use."""
    path = Path(options.text(target, "FILE")).expanduser().absolute()
    done = bridge.with_database(lambda database: database.backup(path))
    return _say(done, json, f"{done['bytes']} bytes in {done['file']}")


@db.command()
def restore(source: Annotated[str, typer.Argument(metavar="FILE", help="A file that backup wrote.")], json: Json = False) -> int:
    """Put back what a backup holds; refused while the database holds runs."""
    path = options.file(source, "FILE")
    done = bridge.with_database(lambda database: database.restore(path))
    return _say(done, json, f"restored from {path}")


def _say(value: dict[str, Any], as_json: bool, text: str | None = None) -> int:
    if as_json:
        emit_json(value)
    else:
        emit_line(text if text is not None else str(value["url"]))
    return 0
