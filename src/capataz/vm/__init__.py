"""The VM: programs, kernel, replay, effects, budgets, waits (VM.md)."""
