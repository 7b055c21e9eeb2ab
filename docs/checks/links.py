"""Links between pages and into the project: the file exists, and the heading that ``#...`` names."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from pathlib import Path

from docs.checks.markdown import Page


def problems(page: Page) -> Iterator[str]:
    """Links of ``page`` that lead nowhere. Addresses of the web are not followed."""
    for number, target in page.links():
        if "://" in target or target.startswith("mailto:"):
            continue
        problem = _problem(page, target)
        if problem is not None:
            yield f"{page.name}:{number}: {problem}"


def _problem(page: Page, target: str) -> str | None:
    place, _, anchor = target.partition("#")
    path = page.path if not place else Path(os.path.normpath(page.path.parent / place))
    if not path.exists():
        return f"the link {target} leads nowhere"
    if not anchor:
        return None
    if path.suffix != ".md":
        return f"the link {target} names a heading of something that is no page"
    return None if anchor in Page(path.name, path).anchors else f"the link {target}: that page has no such heading"
