"""The fault port: named points where a test may kill the process, for exact races."""

from __future__ import annotations

import os
import signal
from typing import Protocol

from capataz.contracts.errors import UsageError


class Faults(Protocol):
    """Named points where a test may kill the process; a no-op otherwise."""

    def reach(self, point: str) -> None: ...


class NoFaults:
    def reach(self, point: str) -> None:
        pass


class KillAt:
    """``CAPATAZ_FAULT=POINT[:N]``: SIGKILL to this process the Nth time (default the first) the point is reached."""

    def __init__(self, spec: str) -> None:
        point, _, number = spec.partition(":")
        self._point = point
        self._left = int(number or "1")

    def reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Traced:
    """``CAPATAZ_FAULT_LOG=FILE``: writes each point's name to the file as it is reached, for counting."""

    def __init__(self, file: str, inner: Faults) -> None:
        self._file = file
        self._inner = inner

    def reach(self, point: str) -> None:
        with open(self._file, "a") as stream:  # noqa: PTH123 (once a point; for tests only)
            stream.write(point + "\n")
        self._inner.reach(point)


POINTS: dict[str, str] = {
    "journal.commit.before": "before every journal commit",
    "journal.commit.after": "after every journal commit",
    "model.before": "before a model call goes out",
    "model.after": "after a model answered, before its completion is journaled",
    "tool.before": "before a tool call runs",
    "tool.after": "after a tool call ran, before its completion is journaled",
    "snapshot.before": "before a workspace snapshot is written",
    "snapshot.after": "after a workspace snapshot is written",
    "workspace.create.before": "before a workspace folder is made",
    "workspace.create.after": "after a workspace folder is made",
    "workspace.remove.before": "before a workspace folder is removed",
    "workspace.remove.after": "after a workspace folder is removed",
    "sandbox.start.before": "before a sandbox starts",
    "sandbox.start.after": "after a sandbox started",
    "freeze.before": "before a worker's tree is frozen",
    "freeze.after": "after a worker's tree is frozen, before it is journaled",
    "compose.before": "before the candidate is written",
    "compose.after": "after the candidate is written, before it is journaled",
    "suite.before": "before a suite runs",
    "suite.after": "after a suite ran, before it is journaled",
    "blob.before": "before a blob is written",
    "blob.after": "after a blob is written",
    "step.before": "before a step's function runs",
    "step.after": "after a step's function ran, before it is journaled",
    "state.before": "before a state is written",
    "state.after": "after a state was written, before it is journaled",
    "epoch.turn": "before an epoch of a loop is archived and the next one begins",
    "ask.before": "before a question is stored",
    "ask.after": "after a question is stored",
    "promote.before": "before the target ref is written",
    "promote.after": "after the target ref is written, before it is journaled",
    "checkout.before": "before the checked-out files of the target are updated",
    "checkout.after": "after the checked-out files of the target are updated, before it is journaled",
    "run.end.before": "before the end of the run is journaled",
    "run.end.after": "after the end of the run is journaled",
    "cleanup.before": "before the run's folders are removed",
    "cleanup.after": "after the run's folders are removed",
}
"""Every fault point and what it stands before or after (``capataz crashtest --points``)."""


def faults_from_environment() -> Faults:
    """The faults that ``CAPATAZ_FAULT`` asks for. Raises ``UsageError`` for an unknown point or number."""
    log = os.environ.get("CAPATAZ_FAULT_LOG")
    chosen = _chosen(os.environ.get("CAPATAZ_FAULT", ""))
    return Traced(log, chosen) if log else chosen


def _chosen(spec: str) -> Faults:
    if not spec:
        return NoFaults()
    point, _, number = spec.partition(":")
    if point not in POINTS or (number and not (number.isdecimal() and int(number) > 0)):
        raise UsageError(f"CAPATAZ_FAULT={spec!r}: no such fault point; `capataz crashtest --points` lists them")
    return KillAt(spec)
