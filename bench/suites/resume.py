"""A worker is killed with 10,000 effects behind it; how long until another one does something new?"""

from __future__ import annotations

import os
import signal

from bench import child
from bench.context import Context
from bench.figures import Row, bounded, series


def measure(context: Context) -> list[Row]:
    effects = context.size(10_000, 100)
    runs = [_resume(context, effects) for _ in range(context.size(3, 1))]
    first = series([run["first_live_ms"] for run in runs], "ms")
    whole = series([run["whole_ms"] for run in runs], "ms")
    return [
        bounded("resume", f"resume of {effects:,} effects: claim to first live effect", first, limit=1000),
        bounded("resume", f"resume of {effects:,} effects: claim to the run's end", whole, limit=None),
    ]


def _resume(context: Context, effects: int) -> dict[str, float]:
    given = {"home": str(context.home), "url": context.url("bench_capataz"), "effects": effects}
    lines: list[str] = []

    def kill_when_live(line: str, pid: int) -> bool:
        lines.append(line)
        if line == "live":
            os.kill(pid, signal.SIGKILL)
        return line != "live"

    child.run("bench.contestants.resume", {**given, "phase": "crash"}, context.environment(), on_line=kill_when_live)
    return child.run("bench.contestants.resume", {**given, "phase": "resume", "run": lines[0]}, context.environment()).answer
