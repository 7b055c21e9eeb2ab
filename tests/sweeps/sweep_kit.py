"""Six programs and what must hold of each, however often it is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.journal import Journal, RunRecord, StateAddress
from capataz.testing.crash_sweep import STAY, SweepReport, sweep
from capataz.testing.lab import Lab
from capataz.vm.ports import Parking

PROGRAMS = Path(__file__).parent / "programs"
SEEDS = 6
Wrong = list[str]
Tell = Callable[[str, str, SweepReport], None]
"""Puts a sweep of a title, done some way, into the table; a violation fails the test."""


def ledger_lines(place: str) -> Counter[str]:
    return Counter(Path(place).read_text().splitlines())


async def steps_once(lab: Lab, run: RunRecord, given: JsonValue) -> Wrong:
    """Every step that the journal holds took effect, in flight at a kill at most twice more."""
    lines = ledger_lines(str(given))
    rows = [*await lab.journal.effects(run.run_id), *await lab.journal.archive(run.run_id, limit=10_000)]
    steps = {row.name for row in rows if row.kind == "step"}
    wrong = [f"step {name} took effect {lines[name]} times" for name in sorted(steps | set(lines)) if not 1 <= lines[name] <= 3]
    return wrong + ([f"steps that are not in the journal took effect: {set(lines) - steps}"] if set(lines) - steps else [])


async def one_way_each(lab: Lab, run: RunRecord, given: JsonValue) -> Wrong:
    """Behind each race one branch was taken, and it is the one in the result."""
    names = {row.name for row in await lab.journal.effects(run.run_id)}
    taken = sorted(name for name in names if name.startswith("after-"))
    return [] if taken == sorted(run.result) else [f"branches {taken} were entered, the result is {run.result}"]


async def each_write_once(lab: Lab, run: RunRecord, given: JsonValue) -> Wrong:
    """Each write took effect once and was told once, and every subscriber saw every version."""
    history = await lab.journal.state_history(StateAddress(reach="run", owner=run.run_id, name="board"))
    told = [e.data["version"] for e in await lab.journal.events(run.run_id, limit=10_000) if e.type == "state.changed"]
    versions = list(range(1, 12))
    expected = {
        "versions": (versions, [record.version for record in history]), "told": (versions, told),
        "writers": (11, len({record.effect for record in history})),
        "seen": ([*range(100, 601, 100), 607, 614, 621, 621, 621], run.result["seen"]), "phase": ("closed", run.result["phase"]),
    }
    return [f"{name}: {got}, not {wanted}" for name, (wanted, got) in expected.items() if got != wanted]


@dataclass(frozen=True)
class Swept:
    name: str
    title: str
    judge: Any
    compare_result: bool = True
    parking: Parking = STAY
    ledger: bool = True

    async def sweep(self, folder: Path, *, seed: int, journal: Journal | None = None, **given: Any) -> SweepReport:
        place: Callable[[int], JsonValue] = (lambda case: str(folder / f"steps-{case}")) if self.ledger else (lambda _: "n")
        return await sweep(
            f"{PROGRAMS / self.name}.py:{self.name}", place, seed=seed, judge=self.judge, journal=journal, parking=self.parking,
            compare_result=self.compare_result, ledger=(lambda at: Path(str(at))) if self.ledger else None, **given,
        )


SWEPT = {swept.name: swept for swept in (
    Swept("chains", "fan-out", steps_once),
    Swept("racing", "race deciding a branch", one_way_each, compare_result=False),
    Swept("nesting", "nested programs", steps_once),
    Swept("sharing", "state and subscriptions", each_write_once, ledger=False),
    Swept("asking", "ask and sleep", steps_once, parking=Parking(sleeps_over_s=0.015, grace_s=0.003)),
    Swept("looping", "loop", steps_once),
)}
