"""Everything that a kernel needs from outside, in one record that the wiring fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from capataz.contracts.blobs import Blobs
from capataz.contracts.clock import Clock
from capataz.contracts.coding import CodingPort
from capataz.contracts.faults import Faults
from capataz.contracts.journal import Holder, Journal
from capataz.contracts.runtime import AgentRuntime
from capataz.vm.pipe import ProcessSource


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


@dataclass(frozen=True, slots=True)
class Parking:
    """When a waiting run ends its process instead of holding it. Seconds; ``asks``: questions park it."""

    asks: bool = True
    sleeps_over_s: float = 30.0
    grace_s: float = 0.05
