"""Errors and exit codes, from the classes and their docstrings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.pages.markdown import code, document, from_docstring, table

_EXITS = [
    ("0", "promoted, a report, completed, parked (the run waits and says for what), or plain success"),
    ("1", "failed"),
    ("2", "declined"),
    ("3", "the provider or the environment is in trouble: trying again later, or mending the machine, may help"),
    ("64", "wrong use: a flag, value, file, id or program that cannot be used as given"),
    ("130", "cancelled, or stopped by Ctrl-C; the run can be resumed"),
]


def page() -> str:
    """The whole page."""
    return document(
        "Errors and exit codes",
        "Every error has a code, which is its class name in snake case. The same code is in `reason.code` of `capataz show "
        "RUN --json`, in events, and in the one line of JSON that a failing verb prints with `--json`: "
        '`{"error": {"code": "not_found", "message": "..."}}`. The message is one line that says what happened and how to mend it.',
        "## Exit codes",
        table(["code", "meaning"], _EXITS),
        "## Errors",
        "*Exit* is the exit code of a verb or run that ends with this error. *Again* says whether the same call may work "
        "later without a change. Indentation shows the family: a program that catches a family catches its members.",
        table(["error", "code", "exit", "again", "meaning"], _rows()),
    )


def _rows() -> Iterator[list[str]]:
    from capataz.contracts.errors import CapatazError

    for depth, cls in _tree(CapatazError, 0):
        indent = "&nbsp;" * 4 * depth
        again = "yes" if cls.retryable else ""
        yield [indent + code(cls.__name__), code(cls.code), str(_exit(cls)), again, from_docstring(cls.__doc__)]


def _exit(cls: Any) -> int:
    """Two errors are reasons of another outcome than ``failed``."""
    from capataz.cli.entry import code_of
    from capataz.contracts.errors import AskDeclined, Cancelled, exit_code

    outcome = {AskDeclined: "declined", Cancelled: "cancelled"}.get(cls)
    return code_of(cls("")) if outcome is None else exit_code(outcome, cls.code)


def _tree(cls: Any, depth: int) -> Iterator[tuple[int, Any]]:
    """Depth first, members in the order of their definition; only what the contract defines."""
    yield depth, cls
    for member in cls.__subclasses__():
        if member.__module__ == cls.__module__:
            yield from _tree(member, depth + 1)
