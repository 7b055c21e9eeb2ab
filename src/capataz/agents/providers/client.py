"""The ``ModelClient`` of a provider: one request, one streamed answer, no retries (agents/retries.py holds the policy)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from capataz.agents.model_client import CallInfo, ClientReply, ProviderFailure
from capataz.agents.providers import anthropic_messages, google_contents, openai_chat, openai_responses
from capataz.agents.providers.draft import Draft, Reader
from capataz.agents.providers.endpoint import Api, Endpoint, KeySource
from capataz.agents.providers.failures import failure_of
from capataz.agents.providers.transports import Transport, open_transport
from capataz.contracts.canonical import canonical_text
from capataz.contracts.errors import CapatazError, ProviderRejected
from capataz.contracts.masking import Masker, one_line

READERS: dict[Api, type[Reader]] = {
    "openai-chat": openai_chat.ChatReader,
    "openai-responses": openai_responses.ResponsesReader,
    "anthropic": anthropic_messages.MessagesReader,
    "google": google_contents.ContentsReader,
}
_CHARACTERS_A_TOKEN = 4


class ProviderClient:
    """``model`` is ``provider/id``; ``model_id`` what the provider calls it. ``endpoint`` and ``keys`` serve the proxy of
    the command harness too, so that there is one key source for both."""

    def __init__(self, model: str, model_id: str, endpoint: Endpoint, *, masker: Masker, window_tokens: int = 0) -> None:
        self.model = model
        self.window_tokens = window_tokens
        self.model_id = model_id
        self.endpoint = endpoint
        self._masker = masker
        self.keys = KeySource(endpoint, masker)
        self._opening = asyncio.Lock()
        self._open: tuple[str | None, Transport] | None = None

    async def reply(
        self,
        *,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        output_schema: dict[str, Any] | None,
        max_output_tokens: int,
        call: CallInfo,
    ) -> ClientReply:
        body = self._request(messages, tools, max_output_tokens)
        try:
            return await self._once(body)
        except ProviderFailure as failure:
            # A token of a command may have expired under us: one fresh one, then the refusal stands.
            if failure.status == 401 and self.keys.expire():
                return await self._once(body)
            raise

    def _request(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], max_output_tokens: int) -> dict[str, Any]:
        given: dict[str, Any] = {"model": self.model_id, "messages": messages, "tools": tools, "max_output_tokens": max_output_tokens}
        match self.endpoint.api:
            case "openai-chat":
                return openai_chat.request(**given, native=self.endpoint.native)
            case "openai-responses":
                return openai_responses.request(**given)
            case "anthropic":
                return anthropic_messages.request(**given)
            case "google":
                return google_contents.request(**given)

    async def _once(self, body: dict[str, Any]) -> ClientReply:
        transport = await self._transport()
        reader = READERS[self.endpoint.api]()
        started = False
        try:
            async with aclosing(transport.stream(body)) as events:
                async for event in events:
                    started = True
                    reader.feed(event)
            _estimate(reader.draft, body)
            return reader.draft.reply()
        except CapatazError:
            raise
        except Exception as error:
            raise self.failure(error, started) from error

    async def _transport(self) -> Transport:
        key = await self.keys.key()
        async with self._opening:
            if self._open is not None and self._open[0] == key:
                return self._open[1]
            # In a thread: an SDK takes up to seconds to import, and leases are renewed on this loop meanwhile.
            transport = await asyncio.to_thread(open_transport, self.endpoint, key)
            # One with an older key is left to its running requests; its connections close with the last of them.
            self._open = (key, transport)
            return transport

    def failure(self, error: Exception, started: bool) -> ProviderFailure | ProviderRejected:
        """What the exception means, without secrets."""
        failure = failure_of(error, started=started)
        if failure is None:
            said = self._masker.text(one_line(f"{type(error).__name__}: {error}"))
            return ProviderRejected(f"{self.model}: the request could not be made ({said})")
        message = self._masker.text(failure.message)
        return ProviderFailure(failure.kind, message, status=failure.status, retry_after_s=failure.retry_after_s)

    async def close(self) -> None:
        """Closes the connections. The client may be used again."""
        open_, self._open = self._open, None
        if open_ is not None:
            await open_[1].close()


def _estimate(draft: Draft, body: dict[str, Any]) -> None:
    """Servers that report no usage must not be free of every budget."""
    if draft.finish is not None and not draft.input_tokens and not draft.output_tokens:
        draft.input_tokens = len(canonical_text({k: v for k, v in body.items() if k != "model"})) // _CHARACTERS_A_TOKEN
        said = sum(map(len, draft.text)) + sum(len(part) for call in draft.calls for part in call.arguments)
        draft.output_tokens = said // _CHARACTERS_A_TOKEN + 1
