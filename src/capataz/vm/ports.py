"""Everything that a kernel needs from outside, in one record that the wiring fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capataz.contracts.blobs import Blobs
from capataz.contracts.clock import Clock
from capataz.contracts.coding import CodingPort
from capataz.contracts.errors import SandboxUnavailable
from capataz.contracts.faults import Faults
from capataz.contracts.journal import Holder, Journal
from capataz.contracts.runtime import AgentRuntime
from capataz.vm.pipe import ProcessSource
from capataz.vm.watchdog import BUSY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    journal: Journal
    blobs: Blobs
    clock: Clock
    faults: Faults
    agents: AgentRuntime
    coding: CodingPort
    zygote: ProcessSource
    holder: Holder
    step_env: Callable[[], dict[str, str]]     # environment of a step's function
    confined: ProcessSource | None = None      # where programs that a model wrote run: in a sandbox
    busy_s: float = BUSY_S                     # processor time that a program may take without asking for anything


def process_source(ports: Ports, options: Mapping[str, Any]) -> ProcessSource:
    """Where a run's programs live. Raises ``SandboxUnavailable``: an untrusted one never lives outside a sandbox."""
    if not options.get("untrusted"):
        return ports.zygote
    if ports.confined is None:
        raise SandboxUnavailable("this worker has no sandbox for untrusted programs; carry the run on with `capataz resume`")
    return ports.confined


@dataclass(frozen=True, slots=True)
class Parking:
    """When a waiting run ends its process instead of holding it. Seconds; ``asks``: questions park it."""

    asks: bool = True
    sleeps_over_s: float = 30.0
    grace_s: float = 0.05
