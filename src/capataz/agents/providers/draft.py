"""A reply while it streams in, the same for every wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from capataz.agents.model_client import ClientReply, ProviderFailure
from capataz.agents.providers.conversation import scalar_text
from capataz.contracts.journal import Usage


class Reader(Protocol):
    """Reads the events of one answer in a provider's wire format, in order."""

    draft: Draft

    def feed(self, event: dict[str, Any]) -> None:
        """One streamed event. Raises ``ProviderFailure`` for an error that the stream reports."""
        ...

    def feed_whole(self, body: dict[str, Any]) -> None:
        """An answer that was not streamed."""
        ...


@dataclass(slots=True)
class DraftCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": scalar_text("".join(self.arguments))}}


@dataclass(slots=True)
class Draft:
    """``finish`` None: the provider has not said that the answer is complete, so it is not."""

    text: list[str] = field(default_factory=list[str])
    calls: list[DraftCall] = field(default_factory=list[DraftCall])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])      # goes back to the provider in later requests
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None

    @property
    def usage(self) -> Usage:
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cached_tokens=self.cached_tokens, model_calls=1)

    def reply(self) -> ClientReply:
        """The finished answer. Raises ``ProviderFailure("truncated")`` if the stream ended before the provider said so."""
        if self.finish is None:
            raise ProviderFailure("truncated", "the stream ended before the answer did")
        message: dict[str, Any] = {"role": "assistant", "content": scalar_text("".join(self.text))}
        if self.calls:
            message["tool_calls"] = [call.to_json() for call in self.calls]
        return ClientReply(message={**message, **self.extra}, usage=self.usage, finish=self.finish)
