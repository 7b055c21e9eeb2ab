"""What each backend here enforces: for ``capataz doctor``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.errors import CapatazError
from capataz.contracts.sandbox import Sandbox
from capataz.sandbox.backends import NAMES, make_sandbox

Suite = Callable[[Sandbox, Path], Awaitable[list[Any]]]


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One backend on this host. ``problem``: why it cannot be used here (one line), else empty.

    ``findings``: the conformance suite's records (``check``, ``status``, ``detail``, ``seconds``); empty when it did not run.
    """

    backend: str
    usable: bool
    enforces: tuple[str, ...]
    problem: str
    findings: tuple[Any, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that did not hold."""
        return tuple(finding.check for finding in self.findings if finding.status == "failed")


async def doctor(runtime_dir: Path, suite: Suite | None = None) -> list[BackendReport]:
    """A report for every backend that Capataz knows.

    ``suite``: ``capataz.testing.sandbox_conformance.quick_suite``, handed in because it stands above this room.
    """
    return [await _report(name, runtime_dir, suite) for name in NAMES]


async def _report(name: str, runtime_dir: Path, suite: Suite | None) -> BackendReport:
    try:
        sandbox = make_sandbox(name, runtime_dir=runtime_dir)
        enforces = await sandbox.probe()
        findings = await suite(sandbox, runtime_dir) if suite else []
    except CapatazError as error:
        return BackendReport(name, False, (), str(error), ())
    return BackendReport(name, True, enforces, "", tuple(findings))
