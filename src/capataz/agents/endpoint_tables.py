"""The tables ``[models.NAME]``: how one is read and what is built in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from capataz.agents.prices import Price, price_from
from capataz.agents.providers.endpoint import EXTRAS, STALL_S, Endpoint
from capataz.contracts.errors import UsageError
from capataz.contracts.units import seconds

_KEYS = ("base_url", "api", "api_key_env", "api_key_command", "prices", "headers", "options", "stall", "models", "window")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTable:
    """``prices``: by model id, "" for all models of the endpoint. ``models``: ids to list. ``window_tokens`` 0: unknown."""

    endpoint: Endpoint
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    models: tuple[str, ...] = ()
    window_tokens: int = 0

    def secrets(self) -> list[str]:
        """Values that no text may show: the keys that are set now, and what the headers hold."""
        keys = [os.environ.get(v, "") for v in self.endpoint.key_env]
        return [v for v in (*keys, *self.endpoint.headers.values()) if v]


def _built_in(name: str, api: Any, *key_env: str) -> EndpointTable:
    return EndpointTable(endpoint=Endpoint(name=name, api=api, key_env=key_env))


SCRIPTED = EndpointTable(endpoint=Endpoint(name="scripted", api="openai-chat"))
BUILT_IN: dict[str, EndpointTable] = {
    "openai": _built_in("openai", "openai-chat", "OPENAI_API_KEY"),
    "anthropic": _built_in("anthropic", "anthropic", "ANTHROPIC_API_KEY"),
    "google": _built_in("google", "google", "GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "scripted": SCRIPTED,
}


def read_endpoint(name: str, value: Any, where: str, base: EndpointTable | None) -> EndpointTable:
    """``[models.NAME]`` over ``base`` (what is known by that name so far). Raises ``UsageError``."""
    place = f"{where}: [models.{name}]"
    if not isinstance(value, Mapping):
        raise UsageError(f"{place} must be an alias (text) or a table, not {type(value).__name__}")
    table = cast("Mapping[str, Any]", value)
    if not name or "/" in name or ":" in name:
        raise UsageError(f"{place}: a name has no '/' or ':'")
    for key in table:
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, n=1)
            raise UsageError(f"{place}: unknown key {key!r}" + (f"; did you mean {close[0]}?" if close else f"; known are {', '.join(_KEYS)}"))
    if base is None and not table.get("base_url"):
        raise UsageError(f"{place} needs a base_url")
    return EndpointTable(
        endpoint=_endpoint(name, table, place, base.endpoint if base is not None else None),
        prices={**(base.prices if base is not None else {}), **_prices(table.get("prices"), place)},
        models=_texts(table, "models", place) or (base.models if base is not None else ()),
        window_tokens=_window(table.get("window", base.window_tokens if base is not None else 0), place),
    )


def _endpoint(name: str, table: Mapping[str, Any], place: str, base: Endpoint | None) -> Endpoint:
    api = table.get("api", base.api if base is not None else "openai-chat")
    if api not in EXTRAS:
        raise UsageError(f"{place}: api must be one of {', '.join(EXTRAS)}")
    own_key = "api_key_env" in table or "api_key_command" in table
    url = _url(table.get("base_url"), place)
    return Endpoint(
        name=name,
        api=api,
        base_url=url or (base.base_url if base is not None else None),
        key_env=_texts(table, "api_key_env", place) if own_key or base is None else base.key_env,
        key_command=_command(table, place) if own_key or base is None else base.key_command,
        # Another server under a provider's name: it may want no key.
        key_optional=url is not None and not own_key,
        headers=_strings(table, "headers", place) or (base.headers if base is not None else {}),
        options=_object(table, "options", place) or (base.options if base is not None else {}),
        stall_s=seconds(table["stall"]) if "stall" in table else (base.stall_s if base is not None else STALL_S),
    )


def _url(value: Any, place: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise UsageError(f"{place}: base_url must begin with http:// or https://")
    return value.rstrip("/")


def _texts(table: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = table.get(key, ())
    items: tuple[Any, ...] = (value,) if isinstance(value, str) else tuple(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else (None,)
    if not all(isinstance(item, str) and item for item in items):
        raise UsageError(f"{place}: {key} must be text or a list of texts")
    return items


def _command(table: Mapping[str, Any], place: str) -> tuple[str, ...]:
    value = table.get("api_key_command")
    if isinstance(value, str):
        try:
            argv = tuple(shlex.split(value))
        except ValueError as error:
            raise UsageError(f"{place}: api_key_command: {error}") from None
        if not argv:
            raise UsageError(f"{place}: api_key_command is empty")
        return argv
    return _texts(table, "api_key_command", place)


def _object(table: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise UsageError(f"{place}: {key} must be a table")
    return dict(cast("Mapping[str, Any]", value))


def _strings(table: Mapping[str, Any], key: str, place: str) -> dict[str, str]:
    return {k: str(v) for k, v in _object(table, key, place).items()}


def _prices(value: Any, place: str) -> dict[str, Price]:
    """``{input, output, cached}`` for all models, or such a table by model id."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in cast("Mapping[str, Any]", value).values()):
        return {k: price_from(v, f"{place}: prices.{k!r}") for k, v in cast("Mapping[str, Any]", value).items()}
    return {"": price_from(value, place)}


def _window(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{place}: window is a number of tokens")
    return value
