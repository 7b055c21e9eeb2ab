"""1,000 instant agents at once, in Capataz and in what else one could use. Each repetition is a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from bench import child
from bench.child import Ended
from bench.context import Context
from bench.figures import Row, Series, compared, series


@dataclass(frozen=True, slots=True)
class Contestant:
    module: str
    shown: str
    needs: tuple[str, ...]
    config: dict[str, str] = field(default_factory=dict[str, str])


CAPATAZ = Contestant("fan_capataz", "Capataz", ())
OTHERS = (
    Contestant("fan_agno", "Agno, PostgreSQL session storage", ("agno", "sqlalchemy"), {"store": "async"}),
    Contestant("fan_langgraph", "LangGraph functional API, PostgreSQL checkpointer", ("langgraph", "langgraph.checkpoint.postgres")),
    Contestant("fan_dbos", "DBOS steps", ("dbos",)),
)


def measure(context: Context) -> list[Row]:
    present = [CAPATAZ, *(other for other in OTHERS if not _missing(other))]
    ended: dict[str, list[Ended]] = {contestant.module: [] for contestant in present}
    for repetition in range(context.size(3, 1)):
        for contestant in _turned(present, repetition):
            ended[contestant.module].append(_run(context, contestant, repetition))
    rows: list[Row] = []
    for other in OTHERS:
        rows += _rows(context, ended[CAPATAZ.module], other, ended.get(other.module))
    return rows


def _missing(contestant: Contestant) -> str | None:
    """The first package that it needs and that is not installed."""
    for name in contestant.needs:
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return None


def _turned(contestants: list[Contestant], repetition: int) -> list[Contestant]:
    """Another one begins each time."""
    first = repetition % len(contestants)
    return contestants[first:] + contestants[:first]


def _run(context: Context, contestant: Contestant, repetition: int) -> Ended:
    url = context.url(f"bench_{contestant.module}")
    given = {
        "home": str(context.home), "url": url, "agents": context.size(1000, 10), "warm_up": context.size(20, 2),
        "name": f"r{repetition}", **contestant.config,
    }
    environment = context.environment(CAPATAZ_DATABASE_URL=url)
    ended = child.run(f"bench.contestants.{contestant.module}", given, environment, server=context.server_pid)
    context.say(
        f"  {contestant.shown}: {ended.answer['seconds']:.2f} s, processor {ended.cpu_s:.2f} s and {ended.server_cpu_s:.2f} s"
        f" of the server, {ended.peak_mib:.0f} MiB"
    )
    return ended


def _rows(context: Context, ours: list[Ended], other: Contestant, theirs: list[Ended] | None) -> list[Row]:
    count = context.size(1000, 10)
    name = f"fan-out of {count:,} instant agents"
    if theirs is None:
        return [Row("fan_out", f"{name}: wall time", _seconds(ours), other.shown, missing=_missing(other))]
    return [
        compared("fan_out", f"{name}: wall time", _seconds(ours), other.shown, _seconds(theirs), limit=1, strictly=True),
        compared(
            "fan_out", f"{name}: processor time, server included", _cpu(ours), other.shown, _cpu(theirs), limit=None,
            note="steadier than wall time on a busy machine",
        ),
        compared("fan_out", f"{name}: peak memory", _memory(ours), other.shown, _memory(theirs), limit=None, note=Ended.__doc__ or ""),
    ]


def _seconds(runs: list[Ended]) -> Series:
    return series([run.answer["seconds"] for run in runs], "s")


def _cpu(runs: list[Ended]) -> Series:
    return series([run.cpu_s + run.server_cpu_s for run in runs], "s")


def _memory(runs: list[Ended]) -> Series:
    return series([run.peak_mib for run in runs], "MiB")
