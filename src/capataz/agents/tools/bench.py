"""What tools work with: the ports of their agent, its write scope and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from capataz.agents.tools.paths import WriteScope
from capataz.contracts.harness import AgentPorts
from capataz.contracts.sandbox import Session


@dataclass(slots=True)
class Bench:
    ports: AgentPorts
    scope: WriteScope
    agent: str
    command_timeout_s: float
    shells: dict[int, str] = field(default_factory=dict[int, str])   # by session: bash where there is one

    async def session(self) -> Session:
        return await self.ports.session()
