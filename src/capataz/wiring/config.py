"""Configuration of this installation: where things lie, and the person's own ``config.toml``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from capataz.contracts.errors import UsageError

TABLES: dict[str, tuple[str, ...]] = {"models": (), "commands": (), "prompts": (), "programs": ("busy_s",)}
"""Tables of ``config.toml`` and their keys; none: names of the person's own."""


@dataclass(frozen=True, slots=True)
class Config:
    """``database_url`` and ``blob_url`` None: embedded, under ``home``. ``settings``: the parsed ``home/config.toml``."""

    home: Path
    database_url: str | None = None
    blob_url: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


def load_config(home: Path | None = None) -> Config:
    """From ``CAPATAZ_HOME``, ``CAPATAZ_DATABASE_URL``, ``CAPATAZ_BLOB_URL`` and ``home/config.toml``. Raises ``UsageError``."""
    place = (home or home_folder()).expanduser()
    place = place if place.is_absolute() else Path.cwd() / place
    return Config(
        home=_made(place),
        database_url=os.environ.get("CAPATAZ_DATABASE_URL") or None,
        blob_url=os.environ.get("CAPATAZ_BLOB_URL") or None,
        settings=_settings(place / "config.toml"),
    )


def home_folder() -> Path:
    """``CAPATAZ_HOME``, else the platform's data folder."""
    if given := os.environ.get("CAPATAZ_HOME"):
        return Path(given)
    data = os.environ.get("XDG_DATA_HOME")
    return Path(data) / "capataz" if data and Path(data).is_absolute() else Path.home() / ".local" / "share" / "capataz"


def _made(home: Path) -> Path:
    """A new home is closed to others, since it holds copies of sources. Root's is not: its database may run as another user."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700 if os.geteuid() else 0o755)
    except OSError as error:
        raise UsageError(f"CAPATAZ_HOME {home} cannot be used: {error.strerror or error}; set CAPATAZ_HOME to a folder that you may write") from None
    if not os.access(home, os.W_OK | os.X_OK):
        raise UsageError(f"CAPATAZ_HOME {home} is not writable; set CAPATAZ_HOME to a folder that you may write")
    return home


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    _check(path, settings)
    return settings


def _check(path: Path, settings: dict[str, Any]) -> None:
    """What stands where; the values are checked by those who use them."""
    for name, table in settings.items():
        if name not in TABLES:
            raise UsageError(f"{path}: unknown table [{name}]{_hint(name, TABLES)}; there are {', '.join(f'[{t}]' for t in TABLES)}")
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} must be a table, [{name}], not {table!r}")
        _check_keys(path, name, cast(dict[str, Any], table))


def _check_keys(path: Path, name: str, table: dict[str, Any]) -> None:
    known = TABLES[name]
    for key, value in table.items():
        if known and key not in known:
            raise UsageError(f"{path}: unknown key {key!r} in [{name}]{_hint(key, known)}; there is {', '.join(known)}")
        if name == "commands" and not isinstance(value, dict):
            raise UsageError(f"{path}: [commands] holds tables, one a program: write [commands.{key}], not {key} = {value!r}")
        if name == "prompts" and not isinstance(value, str):
            raise UsageError(f"{path}: [prompts] {key} must be a text; `capataz prompts` lists the names")


def _hint(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
