from __future__ import annotations

from typing import Any

import pytest

from capataz.agents.model_client import CallInfo, ClientReply
from capataz.agents.providers.client import ProviderClient
from capataz.agents.providers.endpoint import Api, Endpoint
from capataz.contracts.masking import Masker
from capataz.testing.provider_server import ProviderServer

WIRES: tuple[Api, ...] = ("openai-chat", "openai-responses", "anthropic", "google")
KEY = "sk-live-0123456789abcdef"
TOOLS = [{"type": "function", "function": {"name": "write_file", "description": "d", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}]
USER = [{"role": "system", "content": "be short"}, {"role": "user", "content": "Grüße 🙂"}]


class Asked:
    """A client of a scripted server on one wire."""

    def __init__(self, server: ProviderServer, wire: Api, **endpoint: Any) -> None:
        self.masker = Masker()
        given: dict[str, Any] = {"name": "test", "api": wire, "base_url": server.base_url(wire), "key_env": ("TEST_KEY",), "stall_s": 2.0, **endpoint}
        self.client = ProviderClient("test/m1", "m1", Endpoint(**given), masker=self.masker)

    async def __call__(self, messages: list[dict[str, Any]] | None = None, *, tools: list[dict[str, Any]] = TOOLS) -> ClientReply:
        call = CallInfo(agent="a", turn=0, run_id="r", data=None, prompt="p")
        return await self.client.reply(messages=messages or USER, tools=tools, output_schema=None, max_output_tokens=500, call=call)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_KEY", KEY)
    return KEY


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Api:
    return request.param


@pytest.fixture
def asked() -> type[Asked]:
    return Asked
