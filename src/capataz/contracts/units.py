"""Units as people write them: ``30m``, ``2GiB``, ``$5``. Bad text is a ``UsageError`` that shows good text."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal, InvalidOperation

from capataz.contracts.errors import UsageError

_DURATION = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def seconds(value: str | int | float | timedelta) -> float:
    """Seconds of ``"1h30m"``, ``"90s"``, ``90``, ``timedelta``; more than 0 and at most 10 years."""
    if isinstance(value, timedelta):
        total = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        total = float(value)
    else:
        text = str(value).strip().lower()
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            total = float(text)
        elif parts and re.fullmatch(r"(\s*\d+(\.\d+)?\s*(ms|s|m|h|d))+\s*", text):
            total = sum(float(n) * _DURATION[u] for n, u in parts)
        else:
            raise UsageError(f"{value!r} is no duration; write for example 90s, 30m or 1h30m")
    if not 0 < total <= 10 * 366 * 86400:
        raise UsageError(f"{value!r} is no usable duration; it must be more than 0 and at most 10 years")
    return total


def size_bytes(value: str | int) -> int:
    """Bytes of ``"2GiB"``, ``"500MB"``, ``1024``; at least 1."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    if not match or match[2].lower() not in _SIZE or isinstance(value, bool):
        raise UsageError(f"{value!r} is no size; write for example 512MiB or 2GiB")
    total = int(float(match[1]) * _SIZE[match[2].lower()])
    if not 1 <= total < 2**62:
        raise UsageError(f"{value!r} is no usable size")
    return total


def usd(value: str | int | float | Decimal) -> Decimal:
    """Dollars of ``"5"``, ``"$2.50"``; zero or more, finite."""
    try:
        amount = Decimal(str(value).strip().lstrip("$"))
    except InvalidOperation:
        raise UsageError(f"{value!r} is no amount of money; write for example 5 or 2.50") from None
    if not amount.is_finite() or not 0 <= amount < 10**9:
        raise UsageError(f"{value!r} is no usable amount of money; it must be zero or more")
    return amount
