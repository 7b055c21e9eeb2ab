"""A Markdown page as the checks see it: fenced blocks, inline code, headings and links with their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FENCE = re.compile(r"^(`{3,})([\w-]*)\s*$")
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``line``: where its first line of text stands."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """``name``: the path that messages show, from the project's root."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        return list(self._split()[0])

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """Lines outside of fenced blocks, with their numbers."""
        return self._split()[1]

    def inline(self) -> Iterator[tuple[int, str]]:
        """Inline code with its line."""
        for number, line in self.prose:
            yield from ((number, found[1].replace("\\|", "|")) for found in _INLINE.finditer(line))

    def links(self) -> Iterator[tuple[int, str]]:
        """Targets of links with their line; what looks like a link inside inline code is none."""
        for number, line in self.prose:
            yield from ((number, found[1]) for found in _LINK.finditer(_INLINE.sub(_keep_label, line)))

    @cached_property
    def anchors(self) -> set[str]:
        """What ``#...`` may name: headings, spelled as forges spell them."""
        found: set[str] = set()
        for _, line in self.prose:
            if heading := _HEADING.match(line):
                slug = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
                found.add(_free(slug, found))
        return found

    def _split(self) -> tuple[list[Block], list[tuple[int, str]]]:
        blocks: list[Block] = []
        prose: list[tuple[int, str]] = []
        fence, language, start, inside = "", "", 0, list[str]()
        for number, line in enumerate(self.text.splitlines(), 1):
            mark = _FENCE.match(line)
            if not fence and mark:
                fence, language, start, inside = mark[1], mark[2], number + 1, []
            elif fence and line.strip() == fence:
                blocks.append(Block(language, "\n".join(inside) + "\n", start))
                fence = ""
            elif fence:
                inside.append(line)
            else:
                prose.append((number, line))
        if fence:
            blocks.append(Block("unclosed", "", start))
        return blocks, prose


def _keep_label(found: re.Match[str]) -> str:
    return found[1].replace("[", "").replace("]", "").replace("(", "").replace(")", "")


def _free(slug: str, taken: set[str]) -> str:
    number, name = 0, slug
    while name in taken:
        number += 1
        name = f"{slug}-{number}"
    return name
