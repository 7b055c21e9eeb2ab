"""The corpus: whole programs in text files, parted by ``=== title``; a comment with a code ends the line of each finding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_MARK = re.compile(r"# (CPZ\d{3})$")


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    text: str

    @property
    def expected(self) -> set[tuple[str, int]]:
        """Codes and lines."""
        return {(m[1], n) for n, line in enumerate(self.text.splitlines(), 1) if (m := _MARK.search(line))}


def cases(folder: str) -> list[Case]:
    found: list[Case] = []
    for file in sorted((HERE / folder).glob("*.txt")):
        for part in re.split(r"^=== ", file.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            title, _, text = part.partition("\n")
            found.append(Case(f"{file.stem}: {title}", text))
    return found
