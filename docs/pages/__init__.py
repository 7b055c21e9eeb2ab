"""The generated reference pages: name below ``docs/`` to the function that writes it."""

from __future__ import annotations

from collections.abc import Callable

from docs.pages import cli, errors, events, faults, policy, settings

PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli.page,
    "reference/capataz-toml.md": policy.page,
    "reference/config-toml.md": settings.page,
    "reference/errors.md": errors.page,
    "reference/events.md": events.page,
    "reference/fault-points.md": faults.page,
}
