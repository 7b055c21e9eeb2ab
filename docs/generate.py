"""``python -m docs.generate`` writes the generated pages; ``--check`` says what is stale or wrong and writes nothing.

What is written depends on the code alone: not on the terminal, colours, the machine or the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.checks import problems
from docs.checks.markdown import Page
from docs.pages import PAGES

ROOT = Path(__file__).resolve().parent.parent
FRONT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def pages(root: Path = ROOT) -> list[Page]:
    """All pages of the project: those at its root, then ``docs/`` in the order of names."""
    files = [*(root / name for name in FRONT), *sorted((root / "docs").rglob("*.md"))]
    return [Page(file.relative_to(root).as_posix(), file) for file in files]


def write(docs: Path = ROOT / "docs") -> list[str]:
    """Writes the generated pages; gives the names of those that changed."""
    changed: list[str] = []
    for name, make in PAGES.items():
        text, file = make(), docs / name
        if _text(file) != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8", newline="\n")
            changed.append(name)
    return changed


def stale(docs: Path = ROOT / "docs") -> Iterator[str]:
    """A line for each generated page that is not what the code says now."""
    for name, make in PAGES.items():
        if _text(docs / name) != make():
            yield f"docs/{name} is stale: run `python -m docs.generate` and commit the result"


def _text(file: Path) -> str | None:
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None


def main(arguments: Sequence[str]) -> int:
    """0: all is well; 1: something is stale or wrong, one line each on stderr; 64: wrong use."""
    if arguments not in ([], ["--check"]):
        return _say(["docs.generate takes --check or nothing"], 64)
    try:
        if not arguments:
            for name in write():
                sys.stdout.write(f"wrote docs/{name}\n")
        found = [*stale(), *problems(pages())]
    except ValueError as error:                # a page and the code disagree about what there is
        found = [str(error)]
    return _say(found, 1 if found else 0)


def _say(lines: Sequence[str], code: int) -> int:
    for line in lines:
        sys.stderr.write(f"{line}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
