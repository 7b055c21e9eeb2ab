"""The closed list of event types."""

from __future__ import annotations

from docs.pages.markdown import code, document, table


def page() -> str:
    """The whole page."""
    from capataz.contracts.events import TYPES

    return document(
        "Events",
        "A run's events are numbered and never changed. `capataz events RUN` prints them, `-f` goes on until the run ends, "
        "`--json` prints one object a line. The list of types is closed: nothing else is ever sent. Keys and other known "
        "secrets are masked before an event is stored.",
        *(_type(name, fields) for name, fields in TYPES.items()),
    )


def _type(name: str, fields: dict[str, str]) -> str:
    return f"## {name}\n\n" + table(["field", "meaning"], [[code(field), meaning] for field, meaning in fields.items()])
