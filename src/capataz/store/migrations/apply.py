"""Bringing a database to the schema of this code. Alembic and SQLAlchemy are imported only when a step is to be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capataz.contracts.errors import IncompatibleStore

HEAD = "0002"
VERSION_TABLE = "capataz_schema"
LOCK = 0x0CA9A7A2                              # advisory: one migration of a database at a time
HERE = Path(__file__).parent


def schema_sql() -> str:
    """The full schema of ``HEAD``, with its version stamped."""
    return (HERE / "schema.sql").read_text("utf-8") + stamp_sql(HEAD)


def stamp_sql(version: str) -> str:
    return (
        f"\nCREATE TABLE {VERSION_TABLE} (version_num varchar(32) NOT NULL, CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num));"
        f"\nINSERT INTO {VERSION_TABLE} VALUES ('{version}');\n"
    )


def known_versions() -> list[str]:
    """All versions, oldest first: file names sort by number."""
    return [path.stem[1:5] for path in sorted((HERE / "versions").glob("v[0-9]*.sql"))]


def version_sql(version: str) -> str:
    """The statements of one version."""
    (path,) = (HERE / "versions").glob(f"v{version}_*.sql")
    return path.read_text("utf-8")


def check_known(version: str) -> None:
    """Raises ``IncompatibleStore`` for a version that this code does not know: a newer Capataz wrote it."""
    if version not in known_versions():
        raise IncompatibleStore(f"the database has schema {version}, newer than this Capataz knows ({HEAD}); upgrade Capataz, or use another database")


def upgrade_with(module_file: str) -> None:
    """Called by a revision: runs the ``.sql`` file beside it on the plain psycopg connection, inside Alembic's transaction."""
    from alembic import op

    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(Path(module_file).with_suffix(".sql").read_text("utf-8"))


def upgrade(url_parts: dict[str, Any], target: str = "head") -> None:
    """Runs Alembic up to ``target``. Blocking. The caller holds no transaction; the lock is held for all of it."""
    import psycopg
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, pool

    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(**url_parts), poolclass=pool.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        config = Config()
        config.set_main_option("script_location", str(HERE).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, target)
        connection.commit()
