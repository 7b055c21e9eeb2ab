"""Tools that a program brings: a model sees them like any other, and the program's own function answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capataz.agents.history import clean_json
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.catalogue import function_schema
from capataz.agents.tools.errors import ToolError
from capataz.contracts.canonical import canonical_text
from capataz.contracts.errors import DeadlineExceeded, StepFailed, UsageError
from capataz.contracts.harness import ToolReply, ToolSpec

MAX_SHOWN = 50_000


@dataclass(frozen=True)
class OwnTool:
    """One after the other in call order: what such a tool does outside cannot be undone by going back to a tree of files."""

    spec: ToolSpec
    writes: bool = False
    alone: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        return function_schema(self.spec.name, self.spec.description, self.spec.parameters)

    async def call(self, bench: Bench, arguments: dict[str, Any]) -> ToolReply:
        """Raises ``ToolError`` with what the function raised, in one line."""
        name = self.spec.name
        try:
            value = await bench.ports.own_tool(name, clean_json(arguments))
        except (StepFailed, DeadlineExceeded, UsageError) as error:
            raise ToolError(f"{name}: {error.message}") from None
        text = value if isinstance(value, str) else canonical_text(value)
        return ToolReply(content=capped(text), summary=text[:200])


def capped(text: str) -> str:
    """Head and tail of a long answer."""
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]}\n… ({len(text) - MAX_SHOWN} characters left out)\n{text[-half:]}"
