"""Keys from the environment and from commands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from capataz.agents.model_client import CallInfo
from capataz.agents.models import ModelsConfig
from capataz.agents.providers.endpoint import Endpoint, KeySource
from capataz.contracts.errors import ProviderRejected
from capataz.contracts.masking import Masker
from capataz.testing.provider_server import ProviderRequest, ProviderServer, Reply

TOKENS = "import pathlib,sys\np=pathlib.Path(sys.argv[1]); n=int(p.read_text())+1; p.write_text(str(n)); print(f'token-number-{n}')"


def command(*argv: str) -> str:
    return shlex.join([sys.executable, *argv])


async def ask(models: ModelsConfig, model: str) -> str:
    call = CallInfo(agent="a", turn=0, run_id="r", data=None, prompt="p")
    reply = await models.client(model).reply(messages=[{"role": "user", "content": "x"}], tools=[], output_schema=None, max_output_tokens=9, call=call)
    return reply.message["content"]


async def test_a_command_gives_the_key_once_and_again_when_it_expired(tmp_path: Path) -> None:
    counter = tmp_path / "n"
    counter.write_text("0")
    good = {"token-number-1"}
    async with ProviderServer(lambda r: Reply(text=r.key or ""), keys=good) as server:
        models = ModelsConfig({"vault": {"base_url": server.base_url("openai-chat"), "api_key_command": command("-c", TOKENS, str(counter))}})
        assert await ask(models, "vault/m") == "token-number-1"
        assert await ask(models, "vault/m") == "token-number-1", "kept, not asked for each call"
        good.clear()
        good.add("token-number-2")
        assert await ask(models, "vault/m") == "token-number-2", "refused once, then fetched anew"
        assert {"token-number-1", "token-number-2"} <= models.known_secrets()
        await models.close()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-c", "import sys; print('vault: sealed', file=sys.stderr); sys.exit(3)"), "exited with 3: vault: sealed"),
        (("-c", "pass"), "no single line"),
        (("-c", "print('a'); print('b')"), "no single line"),
    ],
)
async def test_a_command_that_fails_is_one_line(argv: tuple[str, ...], said: str) -> None:
    endpoint = Endpoint(name="v", api="openai-chat", key_command=(sys.executable, *argv))
    with pytest.raises(ProviderRejected, match=said) as caught:
        await KeySource(endpoint, Masker()).key()
    assert "\n" not in str(caught.value)


async def test_a_command_that_is_not_there() -> None:
    with pytest.raises(ProviderRejected, match="cannot be started"):
        await KeySource(Endpoint(name="v", api="openai-chat", key_command=("/no/such",)), Masker()).key()


@pytest.mark.parametrize(
    ("model", "wire", "variable", "url"),
    [
        ("openai/m", "openai-chat", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
        ("anthropic/m", "anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
        ("google/m", "google", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
        ("google/m", "google", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
    ],
)
async def test_the_usual_variables_work(monkeypatch: pytest.MonkeyPatch, model: str, wire: Any, variable: str, url: str) -> None:
    async with ProviderServer(lambda r: Reply(text="hello"), keys={"the-real-key"}) as server:
        monkeypatch.setenv(variable, "the-real-key")
        monkeypatch.setenv(url, server.base_url(wire))
        models = ModelsConfig()
        assert await ask(models, model) == "hello"
        await models.close()
        assert server.requests[0].wire == wire


async def test_headers_and_options_reach_the_endpoint() -> None:
    seen: list[ProviderRequest] = []

    def respond(request: ProviderRequest) -> Reply:
        seen.append(request)
        return Reply(text="ok")

    async with ProviderServer(respond) as server:
        for api in ("openai-chat", "openai-responses", "anthropic"):
            table = {"base_url": server.base_url(api), "api": api, "headers": {"X-Team": "blue-team"}, "options": {"temperature": 0.5}}
            models = ModelsConfig({"own": table})
            await ask(models, "own/m")
            await models.close()
    assert len(seen) == 3 and all(r.headers["x-team"] == "blue-team" and r.body["temperature"] == 0.5 for r in seen)
