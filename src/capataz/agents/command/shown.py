"""What a program prints, as few events: whole lines, at most 4 KiB each, at once after a pause."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable

MOST = 4096
_PAUSE_S = 1.0
MOST_EVENTS = 1000                             # a program that prints for hours must not fill the journal


class Shown:
    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._last = 0.0
        self._events = 0

    def add(self, data: bytes) -> None:
        self._text += self._decoder.decode(data)
        if len(self._text.encode()) >= MOST or time.monotonic() - self._last > _PAUSE_S:
            whole, newline, rest = self._text.rpartition("\n")
            # A line without an end waits, so that no secret is cut in two by the way it was printed.
            if newline:
                self._flush(whole + newline)
                self._text = rest
            elif len(self._text) >= MOST:
                self._flush(self._text)
                self._text = ""

    def end(self) -> None:
        self._flush(self._text + self._decoder.decode(b"", final=True))
        self._text = ""

    def _flush(self, text: str) -> None:
        while text and self._events < MOST_EVENTS:
            piece = text.encode()[:MOST].decode("utf-8", "ignore")
            self._emit(piece if self._events < MOST_EVENTS - 1 else "… (further output is not shown)\n")
            self._events += 1
            self._last = time.monotonic()
            text = text[len(piece):]
