"""``capataz doctor``: what works on this machine and how to mend what does not. A broken part is a finding, never an exception."""

from __future__ import annotations

import asyncio
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from capataz.contracts.errors import CapatazError
from capataz.wiring.config import Config, load_config
from capataz.wiring.home import runtime_folder

BACKENDS = ("bubblewrap", "gvisor", "container", "local")


async def doctor(*, home: Path | None = None) -> dict[str, Any]:
    try:
        config = load_config(home)
    except CapatazError as error:
        return {"ok": False, "checks": [_row("home", False, error.message, "set CAPATAZ_HOME")], "sandboxes": []}
    checks = [_python(), await _checked("home", lambda: _home(config)), await _checked("git", _git)]
    checks.append(await _checked("database", lambda: _database(config)))
    checks.append(await _checked("models", lambda: _models(config)))
    sandboxes = [await _sandbox(config, name) for name in BACKENDS]
    usable = any(row["usable"] for row in sandboxes if row["backend"] != "local")
    detail = "a sandbox that isolates is usable" if usable else "no sandbox that isolates is usable here"
    checks.append(_row("sandbox", usable, detail, None if usable else sandboxes[0]["detail"]))
    return {"ok": all(row["ok"] for row in checks), "checks": checks, "sandboxes": sandboxes}


def _row(name: str, ok: bool, detail: str, fix: str | None = None) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail, "fix": fix}


def _python() -> dict[str, Any]:
    return _row("python", True, f"Python {platform.python_version()} on {sys.platform} {platform.machine()}")


async def _checked(name: str, check: Callable[[], Awaitable[str]]) -> dict[str, Any]:
    try:
        return _row(name, True, await check())
    except CapatazError as error:
        return _row(name, False, error.message, error.message)
    except Exception as error:
        return _row(name, False, f"{type(error).__name__}: {error}", "please report this with the output of capataz doctor --json")


async def _home(config: Config) -> str:
    free = shutil.disk_usage(config.home).free
    return f"{config.home}, {free / 2**30:.1f} GiB free"


async def _git() -> str:
    from capataz.workspace.git import check_version

    return f"git {'.'.join(map(str, await asyncio.to_thread(check_version)))}"


async def _database(config: Config) -> str:
    from capataz.store.store import open_store

    store = await open_store(config.home, config.database_url, config.blob_url)
    try:
        await store.journal.list_runs(limit=1)
    finally:
        await store.close()
    return "external PostgreSQL answers" if config.database_url else "embedded PostgreSQL answers"


async def _models(config: Config) -> str:
    from capataz.agents.models import ModelsConfig

    rows = ModelsConfig(config.settings.get("models")).list_models()
    usable = sorted({row.provider for row in rows if row.usable})
    return f"usable providers: {', '.join(usable)}" if usable else "no provider has a key yet (set for example OPENAI_API_KEY)"


async def _sandbox(config: Config, name: str) -> dict[str, Any]:
    from capataz.sandbox import make_sandbox

    row: dict[str, Any] = {"backend": name, "usable": False, "default": name == "bubblewrap", "enforces": [], "detail": ""}
    try:
        enforces = await make_sandbox(name, runtime_dir=runtime_folder(config.home)).probe()
    except CapatazError as error:
        return {**row, "detail": error.message}
    return {**row, "usable": True, "enforces": list(enforces), "detail": "ready"}
