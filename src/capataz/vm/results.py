"""What effects give a program: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError
from capataz.contracts.journal import Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What an agent without ``output=`` gives. ``transcript``: uri of the whole conversation, or None."""

    text: str
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    transcript: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A person's answer: what, by whom, when (UTC), through which channel, with what note."""

    value: T
    by: str
    at: datetime
    channel: str
    note: str | None = None

    @property
    def who(self) -> str:
        return self.by

    @property
    def when(self) -> datetime:
        return self.at

    @property
    def approved(self) -> bool:
        """Whether an approval was given."""
        return self.value == "approve"


@dataclass(frozen=True, slots=True)
class Failure:
    """An item of ``fan_out(..., on_error="collect")`` that raised."""

    key: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.key}: {self.error}"

    def model_dump(self, mode: str = "python") -> JsonValue:
        """Its JSON form."""
        error = self.error
        data = error.to_json() if isinstance(error, CapatazError) else {"code": type(error).__name__, "message": str(error)}
        return {"key": self.key, "error": data}


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """An entry of the run's inbox."""

    body: T
    sender: str
    at: datetime
    id: str = ""


def moment(value: Any) -> datetime:
    """Seconds since the Unix epoch, or ISO 8601 text, as a UTC time."""
    if isinstance(value, str):
        at = datetime.fromisoformat(value)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return datetime.fromtimestamp(float(value or 0), UTC)
