"""Streams of raw events from the providers' SDKs, whose own retries are off. Each SDK is imported at its first call.

The SDKs hold the connection, the credentials' form and the error classes; what the events mean is read by our readers.
(The SDKs' own accumulators, and Agno's above them, raise on a malformed tool argument and take a cut stream for an answer.)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from capataz.agents.model_client import ProviderFailure
from capataz.agents.providers.endpoint import Endpoint


class Transport(Protocol):
    def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The answer's events. Exceptions are the SDK's own (``failures.failure_of``)."""
        ...

    async def close(self) -> None: ...


class OpenAITransport:
    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        from openai import AsyncOpenAI

        self._responses = endpoint.api == "openai-responses"
        self._options = dict(endpoint.options)
        self._sdk = AsyncOpenAI(
            api_key=key or "none", base_url=endpoint.base_url, max_retries=0, timeout=endpoint.stall_s, default_headers=dict(endpoint.headers)
        )

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        create: Any = self._sdk.responses.create if self._responses else self._sdk.chat.completions.create
        async with await create(**body, extra_body=self._options or None) as events:
            async for event in events:
                yield _plain(event, warnings=False)

    async def close(self) -> None:
        await self._sdk.close()


class AnthropicTransport:
    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        from anthropic import AsyncAnthropic

        self._options = dict(endpoint.options)
        self._sdk = AsyncAnthropic(
            api_key=key or "none", base_url=endpoint.base_url, max_retries=0, timeout=endpoint.stall_s, default_headers=dict(endpoint.headers)
        )

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        create: Any = self._sdk.messages.create
        async with await create(**body, stream=True, extra_body=self._options or None) as events:
            async for event in events:
                yield _plain(event, warnings=False)

    async def close(self) -> None:
        await self._sdk.close()


class GoogleTransport:
    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        from google import genai

        options: dict[str, Any] = {"timeout": int(endpoint.stall_s * 1000), "retry_options": {"attempts": 1}}
        if endpoint.base_url:
            options["base_url"] = endpoint.base_url
        if endpoint.headers:
            options["headers"] = dict(endpoint.headers)
        if endpoint.options:
            options["extra_body"] = dict(endpoint.options)
        make: Any = genai.Client
        self._sdk: Any = make(api_key=key or "none", http_options=options)

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        events: Any = await self._sdk.aio.models.generate_content_stream(**body)
        try:
            async for event in events:
                yield _plain(event, by_alias=True, exclude_none=True, exclude={"sdk_http_response"}, warnings=False)
        finally:
            await events.aclose()

    async def close(self) -> None:
        await self._sdk.aio.aclose()


def _plain(event: Any, **dump: Any) -> dict[str, Any]:
    """The SDKs build events without checking them: what is no object is no event either."""
    if not hasattr(event, "model_dump"):
        raise ProviderFailure("truncated", "an event of the answer is no JSON object")
    return event.model_dump(mode="json", **dump)


def open_transport(endpoint: Endpoint, key: str | None) -> Transport:
    if endpoint.api == "anthropic":
        return AnthropicTransport(endpoint, key)
    if endpoint.api == "google":
        return GoogleTransport(endpoint, key)
    return OpenAITransport(endpoint, key)
