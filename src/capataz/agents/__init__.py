"""Agents: harnesses, tools, models, limits."""
