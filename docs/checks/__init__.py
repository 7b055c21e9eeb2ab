"""What must be true of every page: code works, flags exist, links lead somewhere. Each check gives lines ``page:line: what``."""

from __future__ import annotations

from collections.abc import Iterator

from docs.checks import code, flags, links
from docs.checks.markdown import Page


def problems(pages: list[Page]) -> Iterator[str]:
    """Every problem of ``pages``, in the order of the pages."""
    for page in pages:
        yield from code.problems(page)
        yield from flags.problems(page)
        yield from links.problems(page)
