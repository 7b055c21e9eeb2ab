"""What the journal costs: an effect against the cheapest durable thing that the same server does."""

from __future__ import annotations

from typing import Any

from bench import child
from bench.context import Context
from bench.figures import Row, Series, compared, series

NAMES = {
    "agents": ("a journaled effect, one after the other", 2.5),
    "clock": ("now(), one after the other", 2.5),
    "fan": ("an effect in a fan-out of 100", 0.5),
    "empty": ("a run without effects, from its claim to its end", None),
    "steps": ("step(), which forks a process for its function", None),
}

_NOTES = {
    "empty": "for information: its program is loaded and run in a process of its own",
    "steps": "for information: what a step runs is a function of yours in a process of its own",
}


def measure(context: Context) -> list[Row]:
    counts = {"agents": context.size(300, 10), "clock": context.size(300, 10), "fan": context.size(100, 10), "steps": context.size(100, 5)}
    given = {
        "home": str(context.home), "url": context.url("bench_capataz"), "counts": counts,
        "repetitions": context.size(7, 1), "commits": context.size(200, 10),
    }
    figures = child.run("bench.contestants.effects", given, context.environment()).answer
    return [_row(name, figures[name]) for name in NAMES]


def _row(name: str, pairs: list[tuple[float, float]]) -> Row:
    shown, limit = NAMES[name]
    note = _NOTES.get(name, "")
    return compared("effects", shown, _ms(pairs, 0), "a raw durable commit", _ms(pairs, 1), limit=limit, note=note)


def _ms(pairs: list[Any], place: int) -> Series:
    return series([pair[place] for pair in pairs], "ms")
