"""The verbs in groups, each with what it does in a few words: what `capataz --help` shows."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "Work": ("do", "run", "resume", "rebase", "chat", "repl", "demo"),
    "Look": ("ps", "show", "tree", "events", "diff", "logs"),
    "Answer and steer": ("asks", "answer", "notify", "pause", "cancel", "topup"),
    "Change a run's program": ("plan", "fork", "resolve"),
    "Write programs": ("programs", "check", "crashtest", "models", "prompts"),
    "This installation": ("doctor", "gc", "db", "worker", "mcp"),
}


class VerbGroup(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rest = dict.fromkeys(self.list_commands(ctx))
        for title, names in SECTIONS.items():
            self._section(title, [name for name in names if name in rest], ctx, formatter)
            for name in names:
                rest.pop(name, None)
        self._section("More", list(rest), ctx, formatter)

    def _section(self, title: str, names: list[str], ctx: Any, formatter: Any) -> None:
        rows = [(name, _few_words(command)) for name in names if (command := self.get_command(ctx, name)) is not None]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _few_words(command: Any) -> str:
    """The beginning of the help, up to where it goes into detail."""
    return re.split(r"[:;.](?:\s|$)", (command.help or "").strip(), maxsplit=1)[0]
