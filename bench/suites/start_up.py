"""What a person waits for before anything happens."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from bench.context import Context
from bench.figures import Row, Series, series

COMMAND = Path(sysconfig.get_path("scripts")) / "capataz"


def measure(context: Context) -> list[Row]:
    commands = {
        "version": [os.fspath(COMMAND), "--version"],
        "import": [sys.executable, "-c", "import capataz"],
        "bare": [sys.executable, "-c", "pass"],
    }
    if not COMMAND.exists():
        commands["version"] = [sys.executable, "-m", "capataz.cli.main", "--version"]
    environment = context.environment()
    for command in commands.values():
        _ms(command, environment)
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(context.size(15, 2)):
        for name, command in commands.items():
            times[name].append(_ms(command, environment))
    bare = series(times["bare"], "ms")
    return [
        _row("capataz --version, a new process", series(times["version"], "ms"), bare, 200),
        _row("import capataz, a new process", series(times["import"], "ms"), bare, 150),
    ]


def _row(name: str, ours: Series, bare: Series, limit: float) -> Row:
    return Row("start_up", name, ours, "python -c pass", bare, ours.median, "ms", limit)


def _ms(command: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000
