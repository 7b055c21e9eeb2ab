"""The VM: programs, kernel, replay, effects, budgets, waits."""
