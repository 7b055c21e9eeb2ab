"""A tool call in a running sandbox against the same command without one."""

from __future__ import annotations

import statistics

from bench import child
from bench.context import Context
from bench.figures import Row, bounded, series


def measure(context: Context) -> list[Row]:
    figures = child.run("bench.contestants.tools", {"repetitions": context.size(100, 5)}, context.environment()).answer
    if "missing" in figures:
        context.say(f"  no sandbox here: {figures['missing']}")
        nothing = series([0.0], "ms")
        return [Row("tools", "run_command true in a running sandbox", nothing, "bare subprocess", missing="bubblewrap", note=figures["missing"])]
    ours = series([pair[0] for pair in figures["pairs"]], "ms")
    theirs = series([pair[1] for pair in figures["pairs"]], "ms")
    over = statistics.median(a - b for a, b in figures["pairs"])
    return [
        Row(
            "tools", "run_command true in a running sandbox", ours, "bare subprocess", theirs, over, "ms more", 3.0,
            note="the same bash -c true; the snapshot after a writing call and the journal's commits are measured elsewhere",
        ),
        bounded("tools", "start of a sandbox session", series([figures["start_ms"]], "ms"), limit=None),
    ]
