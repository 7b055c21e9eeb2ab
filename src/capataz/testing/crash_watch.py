"""What must not change when a worker is killed: completed effects stay as they are and are not performed again.

A worker's time from its claim to its death is a *phase*. For each call: how often it was completed before the phase, and how
often it was made in the phase, are together never more than the times that the finished journal holds it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.journal import EffectRow, Journal
from capataz.testing.lab import Lab
from capataz.vm.keys import agent_name

Call = tuple[str, str, int]                    # agent, prompt, turn; or a step's name, "", -1
ALL = 100_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What the journal holds; finished epochs of loops included."""

    rows: dict[str, EffectRow]

    @classmethod
    async def of(cls, journal: Journal, run_id: str) -> Standing:
        rows = [*await journal.effects(run_id), *await journal.archive(run_id, limit=ALL)]
        return cls({row.key: row for row in rows})

    def calls(self, *, completed: bool) -> Counter[Call]:
        rows = [row for row in self.rows.values() if row.status != "requested" or not completed]
        steps = [(row.name, "", -1) for row in rows if row.kind == "step"]
        return Counter([*steps, *(self._model_call(row) for row in rows if row.kind == "model")])

    def _model_call(self, row: EffectRow) -> Call:
        agent = self.rows[row.parent or ""]
        given = agent.input if isinstance(agent.input, dict) else {}
        return agent_name(agent.scope, agent.name), str(given.get("prompt", "")), int(row.name.removeprefix("t"))


@dataclass(frozen=True, slots=True)
class Phase:
    """``before``: what was on record when the worker came; ``made``: what it performed."""

    before: Standing
    made: Counter[Call]


class Watch:
    """Tells phases apart. ``ledger``: a file to which the program's steps write their names, one a line."""

    def __init__(self, lab: Lab, run_id: str, ledger: Path | None) -> None:
        self._lab = lab
        self._run_id = run_id
        self._ledger = ledger
        self._phases: list[Phase] = []

    async def begin(self) -> None:
        self._standing = await Standing.of(self._lab.journal, self._run_id)
        self._calls, self._lines = len(self._lab.harness.calls), len(self._steps())

    def end(self) -> None:
        steps = [(name, "", -1) for name in self._steps()[self._lines :]]
        self._phases.append(Phase(self._standing, Counter([*self._lab.harness.calls[self._calls :], *steps])))

    def _steps(self) -> list[str]:
        return self._ledger.read_text().splitlines() if self._ledger is not None and self._ledger.exists() else []

    async def judge(self) -> list[str]:
        """What does not hold, of a finished run."""
        last = await Standing.of(self._lab.journal, self._run_id)
        held = last.calls(completed=False)
        return [wrong for phase in self._phases for wrong in (*_repeated(phase, held), *_lost(phase.before, last))]


def _repeated(phase: Phase, held: Counter[Call]) -> list[str]:
    done = phase.before.calls(completed=True)
    again = sorted(call for call, times in phase.made.items() if done[call] + times > held[call])
    return [f"made again although completed: {again}"] if again else []


def _lost(before: Standing, last: Standing) -> list[str]:
    kept = ("status", "result", "error", "delivery_no", "request_no", "input_digest", "ended_at")
    done = [row for row in before.rows.values() if row.status != "requested"]
    changed = [
        row.key for row in done
        if row.kind != "epoch" and any(getattr(row, name) != getattr(last.rows.get(row.key), name, None) for name in kept)
    ]
    return [f"a recorded result was lost or changed: {changed}"] if changed else []
