"""Commands and flags in text: each ``capataz VERB --flag`` must be one that the command line has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

from docs.checks.markdown import Page
from docs.pages.cli import commands, flags, root_flags

_SHELLS = {"sh", "console"}
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*")
_FLAG = re.compile(r"--?[A-Za-z][\w-]*")
_OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "2>"}


def problems(page: Page) -> Iterator[str]:
    """Verbs and flags of ``page`` that do not exist."""
    for number, line in _lines(page):
        for problem in _line(line):
            yield f"{page.name}:{number}: {problem}"


def _lines(page: Page) -> Iterator[tuple[int, str]]:
    for number, text in page.inline():
        if text.startswith(("capataz ", "--")) or ".venv/bin/capataz " in text or re.match(r"CAPATAZ_\w+=\S* capataz ", text):
            yield number, text
    for block in page.blocks:
        if block.language in _SHELLS:
            yield from _commands(block.text, block.line, console=block.language == "console")


def _commands(text: str, first: int, *, console: bool) -> Iterator[tuple[int, str]]:
    """In a console block only lines after ``$`` are commands, the rest is what they printed."""
    for number, line in enumerate(text.splitlines(), first):
        if not console:
            yield number, line
        elif line.startswith("$ "):
            yield number, line[2:]


def _line(line: str) -> Iterator[str]:
    for words in _simple_commands(line):
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if words and words[0].rpartition("/")[2] == "capataz":
            yield from _capataz(words[1:])
        elif words and words[0].startswith("--"):
            yield from (f"no verb has {word}" for word in words if _FLAG.fullmatch(word) and word not in _all_flags())


def _simple_commands(line: str) -> list[list[str]]:
    """Commands of a line, parted at pipes and the like; what stands in ``$(...)`` is a command too."""
    text = re.sub(r"\$\(([^)]*)\)", r" ; \1 ; ", line)
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    found: list[list[str]] = [[]]
    for word in words:
        if word in _OPERATORS:
            found.append([])
        elif word.endswith(";") and len(word) > 1:
            found[-1].append(word[:-1])
            found.append([])
        else:
            found[-1].append(word)
    return found


def _capataz(words: list[str]) -> Iterator[str]:
    if not words or words[0].startswith("-"):
        yield from (f"capataz has no {word}" for word in words if _FLAG.fullmatch(word) and word not in root_flags())
        return
    verb = _verb(words)
    if verb is None:
        if (missing := _missing(words)) is not None:
            yield f"there is no `capataz {missing}`"
        return
    known = flags(_known()[verb]) | {"--debug"}
    for word in words:
        name = word.partition("=")[0]
        if _FLAG.fullmatch(name) and name not in known:
            yield f"`capataz {verb}` has no {name}"


def _verb(words: list[str]) -> str | None:
    for candidate in (" ".join(words[:2]), words[0]):
        if candidate in _known():
            return candidate
    return None


def _missing(words: list[str]) -> str | None:
    """The verb that does not exist; None for ``VERB``, ``...`` and a group of verbs as such (``db``)."""
    group = any(name.startswith(f"{words[0]} ") for name in _known())
    word = words[1] if group and len(words) > 1 else "" if group else words[0]
    if not word.isalpha() or word.isupper():
        return None
    return f"{words[0]} {word}" if group else word


@cache
def _known() -> dict[str, object]:
    return commands()


@cache
def _all_flags() -> frozenset[str]:
    return frozenset(root_flags().union(*(flags(command) for command in _known().values())))
