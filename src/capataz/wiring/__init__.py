"""Wiring: the one room that knows everybody. Configuration, a worker built from parts, lifecycle."""
