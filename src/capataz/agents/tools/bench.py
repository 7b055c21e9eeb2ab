"""What tools work with: the ports of their agent, its write scope and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from capataz.agents.tools.paths import WriteScope
from capataz.contracts.harness import AgentPorts
from capataz.contracts.sandbox import Mount, Session


@dataclass(slots=True)
class Bench:
    ports: AgentPorts
    scope: WriteScope
    agent: str
    command_timeout_s: float
    forwards: dict[int, Path] = field(default_factory=dict[int, Path])   # loopback ports inside: where MCP servers connect to
    read_only: tuple[Mount, ...] = ()
    shells: dict[int, str] = field(default_factory=dict[int, str])   # by session: bash where there is one

    async def session(self) -> Session:
        if not self.forwards:
            return await self.ports.session()
        return await self.ports.session(forwards=self.forwards, read_only=self.read_only)
