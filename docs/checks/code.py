"""Code blocks. ``python`` compiles and, where it is a module, is executed as one; ``toml`` and ``json`` parse.

A block that is one of the files in ``docs/examples`` names it in a comment above it, ``<!-- example: NAME -->``, and must be
the same: the tests run those files through the command line.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

from docs.checks.markdown import Block, Page

EXAMPLES = Path(__file__).parent.parent / "examples"
_NAMED = re.compile(r"^<!-- example: (\S+) -->$")
_LANGUAGES = {"python", "toml", "json", "sh", "console", "text"}


def problems(page: Page) -> Iterator[str]:
    """Blocks of ``page`` that do not work."""
    for block in page.blocks:
        if (problem := _problem(block)) is not None:
            yield f"{page.name}:{block.line}: {problem}"
    yield from _examples(page)


def _problem(block: Block) -> str | None:
    if block.language not in _LANGUAGES:
        return f"a code block is one of {', '.join(sorted(_LANGUAGES))}, not {block.language or 'unmarked'!r}"
    try:
        if block.language == "toml":
            _toml(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python":
            _python(block.text)
    except Exception as error:
        return f"the {block.language} block does not work: {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _toml(text: str) -> None:
    """What has nothing but ``[models]`` and ``[commands]`` is a ``config.toml``, else it is a policy. The parsers must take it."""
    from capataz.agents.command.programs import read_command
    from capataz.agents.models import ModelsConfig
    from capataz.evidence.policy import parse_policy

    tables = tomllib.loads(text)
    if set(tables) - {"models", "commands"}:
        parse_policy(text.encode(), source="the block", outside=True)
    ModelsConfig(tables.get("models"))
    for name, table in tables.get("commands", {}).items():
        read_command(name, {key: value for key, value in table.items() if key not in ("install", "mounts")})  # folders of a host


def _python(text: str) -> None:
    """A fragment with ``await`` at its top level is only compiled."""
    fragment = compile(text, "<block>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if fragment.co_flags & 0x80:               # a coroutine: it awaits outside of any function
        return
    module = types.ModuleType("docs_block")
    sys.modules[module.__name__] = module      # pydantic looks its annotations up there
    try:
        exec(fragment, module.__dict__)
    finally:
        del sys.modules[module.__name__]


def _examples(page: Page) -> Iterator[str]:
    blocks = {block.line: block for block in page.blocks}
    for number, line in page.prose:
        named = _NAMED.match(line)
        if named is None:
            continue
        file, block = EXAMPLES / named[1], blocks.get(number + 2)
        if not file.is_file():
            yield f"{page.name}:{number}: there is no docs/examples/{named[1]}"
        elif block is None or block.text != file.read_text("utf-8"):
            yield f"{page.name}:{number}: the block below is not docs/examples/{named[1]}; copy the file's text"
