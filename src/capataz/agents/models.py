"""Which models there are, by which names, and how each is reached: the ``[models]`` tables.

A string in ``[models]`` is an alias (``fast = "openai/gpt-5-mini"``), a table an endpoint. Three sources, the later wins:
the person's ``config.toml``, the project's policy, the run's overrides. A policy that lies in the repository is written by
whoever writes the repository: it may name aliases for models that the person has, nothing else. (An endpoint could send
the person's key elsewhere, a key command runs on the host, a price of 0 switches a budget off, a script is code.)
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from capataz.agents.endpoint_tables import BUILT_IN, SCRIPTED, EndpointTable, read_endpoint
from capataz.agents.model_client import ModelClient
from capataz.agents.prices import Price, Prices, known_models, window_tokens
from capataz.agents.providers.endpoint import EXTRAS
from capataz.contracts.errors import InvalidPolicy, ProviderRejected, UsageError
from capataz.contracts.masking import Masker

STANDARD_ALIASES = ("fast", "strong", "review")
"""Programs may use these unset: they mean the run's default model then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A line of ``capataz models``. ``model`` None: the provider as a whole, because it cannot be used (``reason``)."""

    provider: str
    model: str | None
    aliases: tuple[str, ...]
    usable: bool
    reason: str | None
    price: Price | None
    window_tokens: int


class ModelsConfig:
    """``user``: the ``[models]`` table of ``CAPATAZ_HOME/config.toml``. Raises ``UsageError``."""

    def __init__(self, user: Mapping[str, Any] | None = None, *, overrides: Mapping[str, str] | None = None) -> None:
        self.masker = Masker()
        self._tables: dict[str, EndpointTable] = dict(BUILT_IN)
        self._aliases: dict[str, str] = {}
        self._clients: dict[str, ModelClient] = {}
        self._add(user or {}, "config.toml")
        self._add(dict(overrides or {}), "the run's models")
        self._learn()

    def with_project(self, table: Mapping[str, Any], *, trusted: bool) -> ModelsConfig:
        """With a policy's ``[models]`` on top; ``trusted``: given by the person from outside the repository.

        Raises ``InvalidPolicy``, for an untrusted table also if it is more than aliases of models that are there.
        """
        made = object.__new__(ModelsConfig)
        made.masker, made._tables, made._aliases, made._clients = self.masker, dict(self._tables), dict(self._aliases), {}
        if not trusted:
            self._refuse_more_than_aliases(table)
        try:
            made._add(table, "[models] of the policy")
        except UsageError as error:
            raise InvalidPolicy(error.message) from None
        made._learn()
        return made

    @staticmethod
    def _refuse_more_than_aliases(table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            if not isinstance(value, str):
                raise InvalidPolicy(f"[models.{name}]: a repository's policy may only set aliases; put endpoints into config.toml or --policy")
            if value.startswith("scripted:"):
                raise InvalidPolicy(f"[models] {name}: a repository's policy may not name a script; pass it with --model")

    def _add(self, table: Mapping[str, Any], where: str) -> None:
        for name, value in table.items():
            if isinstance(value, str):
                self._alias(name, value, where)
            else:
                self._tables[name] = read_endpoint(name, value, where, self._tables.get(name))
                self._aliases.pop(name, None)

    def _alias(self, name: str, value: str, where: str) -> None:
        if name in self._tables or "/" in name or ":" in name or not name:
            raise UsageError(f"{where}: {name!r} cannot be an alias; choose a name that is no provider and has no '/' or ':'")
        self._aliases[name] = value

    def _learn(self) -> None:
        for table in self._tables.values():
            self.masker.add(*table.secrets())

    # ---- names -----------------------------------------------------------------------------------

    def resolve(self, model: str | None, *, default: str | None = None) -> str:
        """``provider/id`` or ``scripted:/absolute/path.py`` of a name or alias; None: ``default``, else the alias ``default``.

        Raises ``UsageError`` that says how to write it. Whether it can be used is ``check``'s business.
        """
        name = model or default or self._aliases.get("default")
        seen: list[str] = []
        while name is not None:
            if name in seen:
                raise UsageError(f"the model alias {seen[0]!r} refers to itself ({' -> '.join([*seen, name])})")
            seen.append(name)
            if name in self._aliases:
                name = self._aliases[name]
            elif name in STANDARD_ALIASES:
                name = self._fallback(name, default)
            else:
                return self._canonical(name)
        raise UsageError('no model is given: pass --model PROVIDER/ID or set default = "PROVIDER/ID" under [models] in config.toml')

    def _fallback(self, alias: str, default: str | None) -> str | None:
        return default if default and default != alias else self._aliases.get("default")

    def _canonical(self, name: str) -> str:
        if name.startswith("scripted:"):
            path = name.removeprefix("scripted:")
            if not path:
                raise UsageError("scripted: needs the path of a script, for example scripted:model.py")
            return f"scripted:{_absolute(path) if path.startswith('/') else Path(path).expanduser().absolute()}"
        provider, slash, model_id = name.partition("/")
        if not slash and name in self._tables and len(self._tables[name].models) == 1:
            return f"{name}/{self._tables[name].models[0]}"
        if not slash or not model_id or not provider:
            raise UsageError(f"{name!r} is no model; write PROVIDER/ID, for example openai/gpt-5-mini{self._meant(name)}")
        if provider not in self._tables or provider == "scripted":
            raise UsageError(f"unknown provider {provider!r} in {name!r}{self._provider_meant(provider, model_id)}")
        return name

    def _meant(self, name: str) -> str:
        owners = [f"{p}/{name}" for p in self._tables if name in (*self._tables[p].models, *known_models(p))]
        close = owners or get_close_matches(name, [*self._aliases, *STANDARD_ALIASES], n=1)
        return f"; did you mean {close[0]}?" if close else f"; aliases: {', '.join(self._aliases) or 'none'}"

    def _provider_meant(self, provider: str, model_id: str) -> str:
        names = [p for p in self._tables if p != "scripted"]
        close = get_close_matches(provider, names, n=1, cutoff=0.6)
        if close:
            return f"; did you mean {close[0]}/{model_id}?"
        return f"; known are {', '.join(sorted(names))}, others need [models.{provider}] with a base_url in config.toml"

    # ---- use -------------------------------------------------------------------------------------

    def check(self, model: str) -> None:
        """Raises what a first call would raise, before anything is started: ``ProviderRejected`` for a missing key or
        extra, ``UsageError`` for a script that is no file. ``model`` as ``resolve`` gave it."""
        if model.startswith("scripted:"):
            if not Path(model.removeprefix("scripted:")).is_file():
                raise UsageError(f"{model}: there is no such file")
            return
        reason = self.table(model).endpoint.missing()
        if reason is not None:
            raise ProviderRejected(reason)

    def table(self, model: str) -> EndpointTable:
        """The endpoint of a resolved model."""
        if model.startswith("scripted:"):
            return self._tables["scripted"]
        return self._tables[model.partition("/")[0]]

    def client(self, model: str) -> ModelClient:
        """The one client of a resolved model. Opens and reads nothing yet: its calls raise what is wrong."""
        if model not in self._clients:
            self._clients[model] = self._scripted(model) if model.startswith("scripted:") else self._provider(model)
        return self._clients[model]

    def _provider(self, model: str) -> ModelClient:
        from capataz.agents.providers.client import ProviderClient

        endpoint = self.table(model).endpoint
        return ProviderClient(model, model.partition("/")[2], endpoint, masker=self.masker, window_tokens=self.window_tokens(model))

    def _scripted(self, model: str) -> ModelClient:
        from capataz.agents.scripted import ScriptedClient

        return ScriptedClient(model.removeprefix("scripted:"))

    async def warm(self, model: str) -> None:
        """Imports what the model's first call and its price need, in a thread: it takes up to seconds."""
        if not model.startswith("scripted:") and self.table(model).endpoint.missing() is None:
            module = EXTRAS[self.table(model).endpoint.api][0]
            await asyncio.to_thread(importlib.import_module, module)
            await asyncio.to_thread(self.window_tokens, model)

    def window_tokens(self, model: str) -> int:
        """The context window; 0: unknown."""
        table = self.table(model)
        provider, _, model_id = model.partition("/")
        return table.window_tokens or (0 if table is SCRIPTED or model.startswith("scripted:") else window_tokens(provider, model_id))

    def prices(self) -> Prices:
        """The price book of these tables."""
        given: dict[str, Price] = {}
        for name, table in self._tables.items():
            given |= {f"{name}/{model_id}" if model_id else name: price for model_id, price in table.prices.items()}
        return Prices(given)

    def known_secrets(self) -> frozenset[str]:
        """Every key that is set or was read so far."""
        self._learn()
        return self.masker.secrets

    async def close(self) -> None:
        for client in self._clients.values():
            close = getattr(client, "close", None)
            if close is not None:
                await close()

    # ---- listing ---------------------------------------------------------------------------------

    def list_models(self) -> list[ModelRow]:
        """Usable providers with all their models, the others with one line that says why not."""
        prices = self.prices()
        return [row for name in sorted(self._tables) if name != "scripted" for row in self._rows(name, prices)]

    def _rows(self, provider: str, prices: Prices) -> Iterator[ModelRow]:
        table = self._tables[provider]
        reason = table.endpoint.missing()
        named = self._by_alias()
        ids = sorted({*table.models, *(m for m in table.prices if m), *(n.partition("/")[2] for n in named if n.startswith(f"{provider}/"))})
        ids += [m for m in known_models(provider) if m not in ids]
        if reason is not None or not ids:
            yield ModelRow(provider=provider, model=None, aliases=(), usable=reason is None, reason=reason, price=None, window_tokens=0)
            return
        for model_id in ids:
            model = f"{provider}/{model_id}"
            yield ModelRow(
                provider=provider, model=model, aliases=tuple(named.get(model, ())), usable=True, reason=None,
                price=prices.rates(model), window_tokens=self.window_tokens(model),
            )  # fmt: skip

    def _by_alias(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for alias in self._aliases:
            try:
                found.setdefault(self.resolve(alias), []).append(alias)
            except UsageError:
                continue
        return found


@lru_cache(maxsize=256)
def _absolute(path: str) -> str:
    """An absolute path as ``pathlib`` writes it. Asked for at each model call of an agent."""
    return str(Path(path))
