"""Where a model is reached and with which key. Keys are read here, in the worker, when a call needs them."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from capataz.contracts.errors import ProviderRejected
from capataz.contracts.masking import Masker, mask_shapes, one_line

Api = Literal["openai-chat", "openai-responses", "anthropic", "google"]
EXTRAS: dict[Api, tuple[str, str]] = {          # api -> (module, extra)
    "openai-chat": ("openai", "openai"),
    "openai-responses": ("openai", "openai"),
    "anthropic": ("anthropic", "anthropic"),
    "google": ("google.genai", "google"),
}
_DEFAULT_URLS: dict[Api, tuple[str, str]] = {
    "openai-chat": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "openai-responses": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "google": ("GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"),
}
STALL_S = 60.0
_TOKEN_LIFE_S = 300.0
_COMMAND_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """``key_env``: the variables that may hold the key, the first that is set counts; none and no command: no key is needed.
    ``options``: further fields of each request body. ``stall_s``: silence after which an answer counts as lost."""

    name: str
    api: Api
    base_url: str | None = None                # None: the provider's own, or what its SDK reads from the environment
    key_env: tuple[str, ...] = ()
    key_command: tuple[str, ...] = ()
    key_optional: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stall_s: float = STALL_S

    @property
    def native(self) -> bool:
        """The provider itself rather than somebody who speaks its language."""
        return self.name == "openai" and self.base_url is None

    def url(self) -> str:
        """The base URL that the SDK would use."""
        variable, default = _DEFAULT_URLS[self.api]
        return (self.base_url or os.environ.get(variable) or default).rstrip("/")

    def missing(self) -> str | None:
        """Why it cannot be used, in one line; None: it can. Runs no command and opens no connection."""
        module, extra = EXTRAS[self.api]
        if not _importable(module):
            return f'{self.name} needs an extra: pip install "capataz[{extra}]"'
        if self.key_env and not self.key_command and not self.key_optional and not any(os.environ.get(v) for v in self.key_env):
            return f"{self.name} needs a key: set {' or '.join(self.key_env)}"
        return None


def _importable(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class KeySource:
    """The present key of an endpoint. What it read is known to ``masker`` before anybody else sees it."""

    def __init__(self, endpoint: Endpoint, masker: Masker) -> None:
        self._endpoint = endpoint
        self._masker = masker
        self._token: tuple[float, str] | None = None
        self._lock = asyncio.Lock()

    async def key(self) -> str | None:
        """None: the endpoint needs none. Raises ``ProviderRejected`` that says what is missing."""
        reason = self._endpoint.missing()
        if reason is not None:
            raise ProviderRejected(reason)
        if self._endpoint.key_command:
            async with self._lock:
                return await self._from_command()
        key = next((value for v in self._endpoint.key_env if (value := os.environ.get(v, "").strip())), None)
        if key:
            self._masker.add(key)
        return key

    def expire(self) -> bool:
        """Forgets a token that was refused. True: a new one may be had."""
        had, self._token = self._token, None
        return had is not None

    async def _from_command(self) -> str:
        now = time.monotonic()
        if self._token is not None and now - self._token[0] < _TOKEN_LIFE_S:
            return self._token[1]
        token = await _run(self._endpoint, self._masker)
        self._masker.add(token)
        self._token = (now, token)
        return token


async def _run(endpoint: Endpoint, masker: Masker) -> str:
    argv = endpoint.key_command
    label = f"the api_key_command of {endpoint.name} ({shlex.quote(argv[0])})"
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            process_group=0,
        )
    except OSError as error:
        raise ProviderRejected(f"{label} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(_COMMAND_S):
            out, err = await process.communicate()
    except (TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise ProviderRejected(f"{label} did not end within {_COMMAND_S:.0f} s") from error
        raise
    token = out.decode("utf-8", "replace").strip()
    if process.returncode != 0 or not token or "\n" in token:
        said = one_line(mask_shapes(masker.text(err.decode("utf-8", "replace"))))
        what = f"exited with {process.returncode}" if process.returncode else "printed no single line with a key"
        raise ProviderRejected(f"{label} {what}{': ' + said if said else ''}")
    return token
