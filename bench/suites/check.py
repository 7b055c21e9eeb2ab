"""``capataz check``: the time for a file, the program's imports included."""

from __future__ import annotations

import time
from pathlib import Path

from bench.context import ROOT, Context
from bench.figures import Row, Series, bounded, series
from capataz.vm.checker import RULES, check

LIMIT_MS = 100.0


def measure(context: Context) -> list[Row]:
    """A small program as people write them, and one file of about a thousand lines."""
    repetitions = context.size(15, 2)
    small, large = context.folder / "small.py", context.folder / "large.py"
    small.write_text((ROOT / "tests/vm/programs/mixture.py").read_text("utf-8"), "utf-8")
    large.write_text(_thousand_lines(), "utf-8")
    check(str(small))  # the surface is read once in a process
    return [
        bounded("check", "check of a program that uses most verbs", _ms(small, repetitions), limit=LIMIT_MS),
        bounded("check", "check of a file of 1,000 lines", _ms(large, repetitions), limit=LIMIT_MS),
    ]


def _ms(file: Path, repetitions: int) -> Series:
    times: list[float] = []
    for _ in range(repetitions):
        started = time.perf_counter()
        check(str(file))
        times.append((time.perf_counter() - started) * 1000)
    return series(times, "ms")


def _thousand_lines() -> str:
    """The rules' own examples under other names, as often as it takes."""
    body = next(iter(RULES.values())).passing
    head, _, rest = body.partition("\n\n")
    parts = [head]
    while sum(part.count("\n") for part in parts) < 1000:
        parts.append(rest.replace("nightly", f"nightly_{len(parts)}"))
    return "\n\n".join(parts)
