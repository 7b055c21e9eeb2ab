"""The kernel's side of loops: lanes of requests, each with numbers of its own, and the turn from one epoch to the next.

A program's own lane lasts as long as it does. The lane of a loop (its rows' parent is the loop's effect) holds the present epoch
only: the turn archives the finished epoch and writes the row of the next one, with the carry, in one transaction. So a program
that is started again comes to its loop with what it did before, gets the carry of the present epoch, and replays that epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.journal import EffectRow
from capataz.vm.history import ProgramHistory
from capataz.vm.keys import Identities, Identity

if TYPE_CHECKING:
    from capataz.vm.effect import Effect

FIRST = 0  # the number of an epoch's own request in its lane


@dataclass(eq=False)
class Lane:
    """``loop``: the loop whose lane it is, None for a program's own. ``turn``: the request that ends the present epoch, once
    the program has made it."""

    parent: str | None
    rows: ProgramHistory
    loop: Effect | None = None
    identities: Identities = field(default_factory=Identities)
    effects: list[Effect] = field(default_factory=list["Effect"])    # of the present epoch; not kept for a program's own lane
    epoch: Effect | None = None
    turn: dict[str, Any] | None = None
    outer_trees: dict[str, str] = field(default_factory=dict[str, str])   # of workspaces, when the loop was reached

    def note(self, effect: Effect) -> None:
        if self.loop is not None:
            self.effects.append(effect)

    def renew(self) -> tuple[str, ...]:
        """Forgets the present epoch; returns the keys of its effects."""
        keys = tuple(effect.key for effect in self.effects)
        self.effects, self.turn = [], None
        self.identities, self.rows = Identities(), ProgramHistory()
        return keys

    def kept_trees(self, trees: dict[str, str], carry: JsonValue) -> dict[str, str]:
        """Trees that the next epoch may depend on and that no row before the loop tells: of workspaces that are older than the
        loop, or that the carry names."""
        if not trees:
            return {}
        text = json.dumps(carry)
        return {
            workspace: tree
            for workspace, tree in trees.items()
            if (self.outer_trees[workspace] != tree if workspace in self.outer_trees else workspace in text)
        }


def epoch_identity(loop: Identity, number: int) -> Identity:
    """The identity of an epoch's own row: ``ordinal`` is the epoch's number."""
    return Identity(loop.scope, "epoch", "", digest({"loop": loop.key}), number)


def lane_rows(programs: Any, parent: str | None) -> list[EffectRow]:
    """The rows of a program with those of its loops' present epochs."""
    rows: list[EffectRow] = []
    for row in programs(parent).by_number.values():
        rows.append(row)
        if row.kind == "loop":
            rows += lane_rows(programs, row.key)
    return rows
