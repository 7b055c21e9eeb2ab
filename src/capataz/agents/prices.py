"""What tokens cost: the ``prices`` tables of the configuration, then the package genai-prices, then nothing known.

Offline: the package's own snapshot, never fetched anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from capataz.contracts.errors import UsageError
from capataz.contracts.journal import Usage
from capataz.contracts.units import usd

MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens. ``cached`` None: cached tokens cost as much as others."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None

    def of(self, usage: Usage) -> Decimal:
        cached = min(usage.cached_tokens, usage.input_tokens)
        rate = self.input if self.cached is None else self.cached
        total = (usage.input_tokens - cached) * self.input + cached * rate + usage.output_tokens * self.output
        return total / MILLION


FREE = Price(Decimal(0), Decimal(0))


def price_from(table: Any, where: str) -> Price:
    """``{input, output, cached}`` in dollars for a million tokens. Raises ``UsageError`` that names ``where``."""
    if not isinstance(table, Mapping) or not {"input", "output"} <= set(table) or set(table) - {"input", "output", "cached"}:  # pyright: ignore[reportUnknownArgumentType]
        raise UsageError(f"{where}: prices are {{ input = 1.25, output = 10, cached = 0.125 }} in dollars for a million tokens")
    try:
        amounts = {str(k): usd(v) for k, v in table.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return Price(**amounts)


class Prices:
    """The ``PriceBook``. Keys of ``tables``: ``provider/id``, or ``provider`` for all its models."""

    def __init__(self, tables: Mapping[str, Price] | None = None) -> None:
        self._tables = dict(tables or {})

    def price(self, model: str, usage: Usage) -> Decimal | None:
        """Dollars, exact; None: no price is known."""
        provider, _, model_id = _split(model)
        table = self._tables.get(model) or self._tables.get(provider)
        if table is not None:
            return table.of(usage)
        if provider == "scripted":
            return Decimal(0)
        return _known(provider, model_id, usage)

    def rates(self, model: str) -> Price | None:
        """What a million tokens cost, for listings (a price that grows with the context is shown at its start)."""
        given = {k: self.price(model, u) for k, u in _PROBES.items()}
        if given["input"] is None or given["output"] is None:
            return None
        return Price(given["input"] * 1000, given["output"] * 1000, None if given["cached"] is None else given["cached"] * 1000)


_PROBES = {
    "input": Usage(input_tokens=1000),
    "output": Usage(output_tokens=1000),
    "cached": Usage(input_tokens=1000, cached_tokens=1000),
}


def _split(model: str) -> tuple[str, str, str]:
    return ("scripted", ":", model[9:]) if model.startswith("scripted:") else model.partition("/")


def _known(provider: str, model_id: str, usage: Usage) -> Decimal | None:
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    tokens = Tokens(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cache_read_tokens=min(usage.cached_tokens, usage.input_tokens))
    try:
        return calc_price(tokens, model_ref=model_id, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None


def window_tokens(provider: str, model_id: str) -> int:
    """The model's context window; 0: unknown."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, model = get_snapshot().find_provider_model(model_id, None, provider, None)
    except (LookupError, ValueError):
        return 0
    return model.context_window or 0


def known_models(provider: str) -> list[str]:
    """Ids that the snapshot has a price for and that are not deprecated; [] for a provider it does not know."""
    from genai_prices.data_snapshot import get_snapshot

    found = next((p for p in get_snapshot().providers if p.id == provider), None)
    return [m.id for m in found.models if not m.deprecated] if found is not None else []
