"""Masking: no known secret reaches a message, a log, an event or a journal row."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

MASK = "[secret]"
_SHORTEST = 6                                  # masking shorter ones would hide ordinary words, and hide nothing of worth


class Masker:
    """Replaces every known secret in texts, in the forms in which it travels (plain, URL, JSON, base64).

    Secrets may be added at any time: a token that a command printed, for instance. Safe for concurrent use by tasks.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Blank values and values under 6 characters are ignored."""
        before = len(self._secrets)
        self._secrets |= {s.strip() for s in secrets if len(s.strip()) >= _SHORTEST}
        if len(self._secrets) != before:
            self._pattern = self._compile()

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(self._secrets)

    def _compile(self) -> re.Pattern[str]:
        forms = {form for secret in self._secrets for form in _forms(secret)}
        # The longest first: a secret that contains another must not leave its own rest behind.
        return re.compile("|".join(re.escape(form) for form in sorted(forms, key=lambda f: (-len(f), f))))

    def __contains__(self, text: str) -> bool:
        """True if ``text`` shows a known secret."""
        return bool(self._pattern and self._pattern.search(text))

    def text(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def json(self, value: Any) -> Any:
        """JSON data with every string masked, object keys included; other values as they are."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(k)): self.json(v) for k, v in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if isinstance(value, (list, tuple)):
            return [self.json(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
        return value


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode().rstrip("=")


_SHAPES = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|xoxb|xoxp)[-_][A-Za-z0-9\-_*•]{8,}"      # providers' keys, also half masked by the provider itself
    r"|\bAIza[A-Za-z0-9\-_*•]{10,}"
    r"|(?<=\bBearer )[A-Za-z0-9\-._~+/]{8,}=*",
)


def mask_shapes(text: str) -> str:
    """Masks what looks like a provider's key though it is none of ours: providers repeat keys in their error messages."""
    return _SHAPES.sub(MASK, text)


def one_line(text: str, limit: int = 300) -> str:
    """White space folded, cut to ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
