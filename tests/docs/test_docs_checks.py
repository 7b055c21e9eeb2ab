"""Each check finds what it is for, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.checks import problems
from docs.checks.markdown import Page


def check(folder: Path, text: str) -> list[str]:
    page = folder / "page.md"
    page.write_text(text, "utf-8")
    return list(problems([Page("page.md", page)]))


def block(language: str, text: str) -> str:
    return f"# Title\n\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`capataz do --polcy FILE`", "page.md:1: `capataz do` has no --polcy"),
        ("`capataz ps --yes`", "page.md:1: `capataz ps` has no --yes"),
        ("Use `--sandbx`.", "page.md:1: no verb has --sandbx"),
        ("`capataz teleport RUN`", "page.md:1: there is no `capataz teleport`"),
        ("`capataz --verbose`", "page.md:1: capataz has no --verbose"),
        ("`capataz db backup --force`", "page.md:1: `capataz db backup` has no --force"),
        (block("sh", "make\ncapataz ps | capataz shw RUN"), "page.md:5: there is no `capataz shw`"),
        (block("sh", "A=1 ../.venv/bin/capataz run x.py --inptu=1"), "page.md:4: `capataz run` has no --inptu"),
        (block("sh", "psql $(capataz db uri)"), "page.md:4: there is no `capataz db uri`"),
        (block("console", "said\n$ capataz top"), "page.md:5: there is no `capataz top`"),
        ("[a](gone.md)", "page.md:1: the link gone.md leads nowhere"),
        ("[a](#gone)", "page.md:1: the link #gone: that page has no such heading"),
        ("[`a`](page.md#nowhere)", "page.md:1: the link page.md#nowhere: that page has no such heading"),
        (block("yaml", "a: 1"), "page.md:4: a code block is one of console, json, python, sh, text, toml, not 'yaml'"),
        (block("", "a"), "page.md:4: a code block is one of console, json, python, sh, text, toml, not 'unmarked'"),
        ("```sh\ncapataz ps\n", "page.md:2: a code block is one of console, json, python, sh, text, toml, not 'unclosed'"),
        (block("json", "{"), "page.md:4: the json block does not work: JSONDecodeError"),
        (block("toml", "[suites.unit]\ncomand = 'x'"), "page.md:4: the toml block does not work: InvalidPolicy"),
        (block("toml", "[models.x]\nurl = 'x'"), "page.md:4: the toml block does not work: UsageError"),
        (block("toml", "[commands.x]\nargs = []"), "page.md:4: the toml block does not work: UsageError"),
        (block("python", "def f(:"), "page.md:4: the python block does not work: SyntaxError"),
        (block("python", "from capataz import teleport"), "page.md:4: the python block does not work: ImportError"),
        (block("python", "from capataz import program\n@program\nasync def f(a, b): ..."), "page.md:4: the python block does not work: ProgramLoadError"),
        ("<!-- example: gone.py -->\n" + block("python", "x = 1"), "page.md:1: there is no docs/examples/gone.py"),
        ("<!-- example: second_opinion.py -->\n```python\nx = 1\n```\n", "page.md:1: the block below is not docs/examples/second_opinion.py"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, text: str, said: str) -> None:
    found = check(tmp_path, text)
    assert len(found) == 1 and found[0].startswith(said), found


@pytest.mark.parametrize(
    "text",
    [
        '`capataz do "..." --policy FILE --yes --json --debug`, `capataz VERB --help`, `capataz db`, `capataz`, `--repo`',
        block("sh", 'capataz do "Fix --this and --that" --repo ~/src  # --nothing\npip install -e . --quiet\ncapataz events RUN -f --json | jq .'),
        block("console", "$ capataz run x.py --input '{\"a\": 1}'\ncapataz: --nothing is printed"),
        "# One `thing`, and another\n\n[here](#one-thing-and-another), [web](https://example.com/x), `[not](a-link)`",
        "# Twice\n\n# Twice\n\n[second](#twice-1)",
        block("python", "from capataz import sleep\nawait sleep(1)"),
        block("python", "from __future__ import annotations\nfrom pydantic import BaseModel\nclass A(BaseModel):\n    b: B | None = None\nclass B(BaseModel):\n    a: A\nB(a=A())"),
        block("toml", "require_new_tests = true\n[suites.unit]\ncommand = 'x'"),
        block("toml", "[commands.pi]\npreset = 'pi'\ninstall = '/nowhere'"),
        "````sh\n```\ncapataz ps\n````",
    ],
)
def test_what_is_right_is_left_alone(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text) == []
