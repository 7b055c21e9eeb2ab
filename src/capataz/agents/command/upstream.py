"""A program's request sent on as it is, to a provider that speaks the program's language: nothing is lost in translation.

The answer is collected before it is passed on: what a program acts on is a fact of the journal first, and a stream that
breaks half-way is tried again without the program noticing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from capataz.agents.command.requests import Asked, Wire
from capataz.agents.model_client import CallInfo, ClientReply, ProviderFailure
from capataz.agents.providers.client import READERS, ProviderClient
from capataz.agents.providers.failures import from_body
from capataz.agents.providers.loose import obj
from capataz.contracts.errors import CapatazError

MAX_ANSWER = 64 << 20
_PATHS: dict[Wire, str] = {"openai-chat": "/chat/completions", "openai-responses": "/responses", "anthropic": "/v1/messages"}
_PASSED = ("anthropic-version", "anthropic-beta", "openai-beta")


def speaks(client: ProviderClient, wire: Wire) -> bool:
    """Whether the client's provider takes this wire as it is. OpenAI itself serves both of its own."""
    if client.endpoint.name == "openai" and client.endpoint.api.startswith("openai"):
        return wire.startswith("openai")
    return client.endpoint.api == wire


class Upstream:
    """The ``ModelClient`` of one request. After ``reply`` its ``raw`` is the provider's stream, byte for byte."""

    def __init__(self, client: ProviderClient, asked: Asked, body: dict[str, Any], headers: dict[str, str], max_output_tokens: int) -> None:
        self.model = client.model
        self.window_tokens = client.window_tokens
        self.raw = b""
        self._client = client
        self._wire: Wire = asked.wire
        self._body = _limited(asked, {**body, "model": client.model_id}, client.endpoint.native, max_output_tokens)
        self._headers = {k: v for k, v in headers.items() if k in _PASSED}

    async def reply(self, *, call: CallInfo, **_: Any) -> ClientReply:
        try:
            return await self._once()
        except ProviderFailure as failure:
            if failure.status == 401 and self._client.keys.expire():
                return await self._once()
            raise

    async def _once(self) -> ClientReply:
        import httpx

        endpoint = self._client.endpoint
        key = await self._client.keys.key()
        url = endpoint.url() + _PATHS[self._wire]
        content = json.dumps({**self._body, **endpoint.options}, ensure_ascii=False).encode("utf-8", "replace")
        raw = bytearray()
        try:
            async with (
                httpx.AsyncClient(timeout=endpoint.stall_s) as http,
                http.stream("POST", url, content=content, headers=self._sent(key)) as answer,
            ):
                async for part in answer.aiter_bytes():
                    raw += part
                    if len(raw) > MAX_ANSWER:
                        raise ProviderFailure("truncated", "the answer is too large")
                if answer.status_code >= 400:
                    raise from_body(_error(bytes(raw)), status=answer.status_code, headers=answer.headers)
            reply = self._read(bytes(raw))
        except CapatazError:
            raise
        except Exception as error:
            raise self._client.failure(error, bool(raw)) from error
        self.raw = bytes(raw)
        return reply

    def _sent(self, key: str | None) -> dict[str, str]:
        """The program's own key is a dummy and stays behind."""
        sent = {"Content-Type": "application/json", "Accept": "text/event-stream", **self._headers, **self._client.endpoint.headers}
        if self._wire == "anthropic":
            return {"anthropic-version": "2023-06-01", **sent, **({"x-api-key": key} if key else {})}
        return {**sent, **({"Authorization": f"Bearer {key}"} if key else {})}

    def _read(self, raw: bytes) -> ClientReply:
        reader = READERS[self._wire]()
        for event in events(raw):
            reader.feed(event)
        return reader.draft.reply()


def _limited(asked: Asked, body: dict[str, Any], native: bool, most: int) -> dict[str, Any]:
    """The answer's length within what the budget reserved, and its usage reported."""
    tokens = min(asked.max_output_tokens or most, most)
    if asked.wire == "openai-chat":
        name = "max_completion_tokens" if native else "max_tokens"
        rest = {k: v for k, v in body.items() if k not in ("max_tokens", "max_completion_tokens")}
        return {**rest, name: tokens, "stream_options": {"include_usage": True}}
    return {**body, "max_tokens" if asked.wire == "anthropic" else "max_output_tokens": tokens}


def _error(raw: bytes) -> dict[str, Any]:
    text = raw.decode("utf-8", "replace")
    try:
        parsed = obj(json.loads(text))
    except ValueError:
        return {"message": text[:500]}
    return obj(parsed.get("error")) or parsed


def events(raw: bytes) -> Iterator[dict[str, Any]]:
    """The JSON data of server-sent events. Raises ``ValueError`` for data that is no JSON."""
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    for block in text.split("\n\n"):
        data = "\n".join(line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
        if data and data != "[DONE]":
            yield obj(json.loads(data))
