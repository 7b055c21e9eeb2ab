"""What the journal already holds of a run, arranged for replay (same generation) and merging (an earlier one)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from capataz.contracts.journal import EffectRow


@dataclass
class ProgramHistory:
    """Rows that one program (the run's own, or a child) requested."""

    by_number: dict[int, EffectRow] = field(default_factory=dict[int, EffectRow])
    deliveries: list[EffectRow] = field(default_factory=list[EffectRow])


class History:
    """``rows``: of the generation that goes on. ``earlier``: of all generations before, oldest first."""

    def __init__(self, rows: list[EffectRow], earlier: list[EffectRow]) -> None:
        self._programs: defaultdict[str | None, ProgramHistory] = defaultdict(ProgramHistory)
        self.rows: dict[str, EffectRow] = {}
        self.earlier = earlier
        self._turns: set[tuple[str, str]] = set()
        self._asked_before: dict[str, EffectRow] = {}
        self.reusable: dict[str, EffectRow] = {row.key: row for row in earlier if row.status == "ok"}
        self._epochs = {row.parent: row for row in earlier if row.kind == "epoch" and row.status == "ok"}  # the newest of each loop
        for row in [*earlier, *rows]:
            if row.kind == "model" and row.parent is not None:
                self._turns.add((row.parent, row.name))
        for row in earlier:
            if row.status == "requested":
                self._asked_before[row.key] = row
        for row in rows:
            self._add(row)
        for program in self._programs.values():
            program.deliveries.sort(key=lambda row: row.delivery_no if row.delivery_no is not None else -1)

    def _add(self, row: EffectRow) -> None:
        self.rows[row.key] = row
        if row.request_no is None:
            return
        program = self._programs[row.parent]
        program.by_number[row.request_no] = row
        if row.delivery_no is not None:
            program.deliveries.append(row)

    @staticmethod
    def merge_order(row: EffectRow) -> tuple[int, int]:
        """Old deliveries are handed out in the order of the newest generation that had them."""
        return -row.generation, row.delivery_no if row.delivery_no is not None else -1

    def program(self, parent: str | None) -> ProgramHistory:
        return self._programs[parent]

    def epoch(self, loop: str | None) -> EffectRow | None:
        """The epoch that a loop came to in an earlier generation."""
        return self._epochs.get(loop)

    def finished(self, key: str) -> EffectRow | None:
        """The row with this key if its outcome stands: any outcome of this generation, a good one of an earlier."""
        row = self.rows.get(key)
        if row is not None and row.status != "requested":
            return row
        return self.reusable.get(key)

    def in_flight(self, key: str) -> bool:
        """Whether this effect was under way when a worker died (now or in the generation before)."""
        row = self.rows.get(key)
        return (row is not None and row.status == "requested") or key in self._asked_before

    def turn_asked(self, agent: str, turn: str) -> bool:
        """Whether a model call of this turn was ever requested: its prompt must not change any more."""
        return (agent, turn) in self._turns
