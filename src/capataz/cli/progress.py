"""Progress while a run is driven: a live tree on a terminal, plain lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from capataz.cli.output import console, is_terminal, stderr_line
from capataz.cli.report import money
from capataz.cli.view import MARKS, AgentLine, RunView
from capataz.contracts.journal import NewEvent

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_STYLES = {"running": "bold", "ok": "green", "error": "red", "cancelled": "dim"}


class Progress(Protocol):
    def heard(self, event: NewEvent) -> None: ...
    def say(self, text: str) -> None: ...
    def pause(self) -> None:
        """Takes the display away, so that a question can be shown."""
        ...

    def resume(self) -> None: ...
    def close(self) -> None: ...


def progress(run_id: str) -> Progress:
    """The display that fits stderr."""
    live = is_terminal(sys.stderr) and not console(err=True).is_dumb_terminal
    return LiveTree(run_id) if live else PlainLines(run_id)


class PlainLines:
    """One line an event that a person wants to know of."""

    def __init__(self, run_id: str) -> None:
        self._view = RunView(run_id)

    def heard(self, event: NewEvent) -> None:
        if line := self._view.heard(event):
            stderr_line(line)

    def say(self, text: str) -> None:
        stderr_line(text)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass


class LiveTree:
    """Stage, agents with turns and last tool, suites, cost; refreshed four times a second and taken away at the end. The lines
    of a plain log scroll past above it and stay."""

    def __init__(self, run_id: str) -> None:
        from rich.live import Live

        self._view = RunView(run_id)
        self._began = time.monotonic()
        self._console = console(err=True)
        self._live = Live(
            get_renderable=self._tree, console=self._console, refresh_per_second=4, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown = False
        self.resume()

    def heard(self, event: NewEvent) -> None:
        if line := self._view.heard(event):
            self.say(line)

    def say(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def pause(self) -> None:
        if self._shown:
            self._live.stop()
            self._shown = False

    def resume(self) -> None:
        if not self._shown:
            self._live.start()
            self._shown = True

    def close(self) -> None:
        self.pause()

    def _tree(self) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        view = self._view
        elapsed = int(time.monotonic() - self._began)
        clock = f"{elapsed // 60}:{elapsed % 60:02d}"
        head = Text.assemble((f"{view.run_id} ", "bold"), f"{view.stage}  {clock}  {view.calls} calls  ${money(view.usd)}")
        tree = Tree(head)
        for line in self._window():
            tree.add(_agent(line))
        for suite in view.suites:
            tree.add(Text(suite, style="green" if " passed " in suite else "red"))
        return tree

    def _window(self) -> list[AgentLine]:
        """The newest agents that fit the screen; running ones are never left out for finished ones."""
        room = max(4, self._console.size.height - 4 - len(self._view.suites))
        lines = list(self._view.agents.values())
        if len(lines) <= room:
            return lines
        running = [line for line in lines if line.state == "running"]
        kept = {id(line) for line in (*running[-room:], *lines[-max(0, room - len(running)) :])}
        return [line for line in lines if id(line) in kept][-room:]


def _agent(line: AgentLine) -> Text:
    from rich.text import Text

    turns = f"{line.turns} turn{'' if line.turns == 1 else 's'}"
    text = Text(f"{MARKS.get(line.state, '?')} {line.name}  ", style=_STYLES.get(line.state, ""), no_wrap=True, overflow="ellipsis")
    text.append(f"{turns}  ${money(line.usd)}  {line.note}", style="dim")
    return text
