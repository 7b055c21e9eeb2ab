"""What a tool says when it cannot do as asked: data for the model, never an error of the run."""

from __future__ import annotations

from typing import Literal

from capataz.agents.history import clean_text
from capataz.contracts.harness import ToolReply

MAX_ERROR = 2_000


class ToolError(Exception):
    """One line for the model, with the fix where it is known. ``refused`` counts towards the end of the agent."""

    def __init__(self, message: str, *, refused: Literal["path", "resource"] | None = None) -> None:
        super().__init__(message)
        self.refused: Literal["path", "resource"] | None = refused


def error_reply(message: str, *, refused: Literal["path", "resource"] | None = None) -> ToolReply:
    """``message`` as one line of at most 2,000 characters."""
    line = " ".join(clean_text(message).split())
    if len(line) > MAX_ERROR - 7:
        line = line[: MAX_ERROR - 20] + " … (cut)"
    return ToolReply(content=f"error: {line}", failed=True, refused=refused, summary=line[:200])
