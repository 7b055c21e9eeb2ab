"""Signals: control flow that is not an error. Programs must not swallow them, so they derive from ``BaseException``."""

from __future__ import annotations


class Signal(BaseException):
    """Root of the signals; ``reason`` says who sent it and why."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Parked(Signal):
    """The run waits for durable things only; its process ends and it becomes claimable when one arrives."""


class LeaseLost(Signal):
    """Another worker holds the run: stop at once and write nothing."""


class Drained(Signal):
    """The worker is told to stop (Ctrl-C once, SIGTERM): park at the next safe point."""
