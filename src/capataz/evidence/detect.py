"""Suites and stack of a repository that declares none, judged by the files of its base tree alone; nothing is run.

A command is offered only where it cannot pass by running nothing: plain ``def test_x`` functions need pytest, because
unittest would find no test in them and be content.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from capataz.contracts.policy import Suite
from capataz.contracts.workspace import RunRepository, TreeEntry

_MARKS: dict[str, tuple[bytes, ...]] = {
    "python": (b"pyproject.toml", b"setup.py", b"setup.cfg", b"requirements.txt", b"tox.ini", b"pytest.ini"),
    "node": (b"package.json",),
    "go": (b"go.mod",),
    "rust": (b"Cargo.toml",),
    "java": (b"pom.xml", b"build.gradle", b"build.gradle.kts"),
    "ruby": (b"Gemfile", b"Rakefile"),
}
_PY_TEST = re.compile(rb"(?:^|.*/)(?:test_[^/]*|[^/]*_test)\.py")
_JS_TEST = re.compile(rb"(?:^|.*/)[^/]*[._-]test\.[cm]?js|(?:^|.*/)test/[^/]*\.[cm]?js|(?:^|.*/)test(?:-[^/]*)?\.[cm]?js")
_SKIP = re.compile(rb"(?:^|.*/)(?:node_modules|\.venv|venv|vendor|third_party|site-packages)/.*")
_MAX_READ_FILES = 200


def detect_stack(entries: list[TreeEntry]) -> str | None:
    """The first stack whose files lie at the root; None: unknown."""
    root = {e.path for e in entries if b"/" not in e.path}
    for stack, marks in _MARKS.items():
        if root.intersection(marks):
            return stack
    if any(p.endswith((b".sln", b".csproj", b".fsproj")) for p in root):
        return "dotnet"
    return "python" if any(p.endswith(b".py") for p in root) else None


async def detect_suites(run: RunRepository, tree: str, entries: list[TreeEntry]) -> list[Suite]:
    """Suites by what lies in the tree, each marked ``detected``; empty: nothing was found."""
    files = {e.path for e in entries if e.mode.startswith("100") and not _SKIP.fullmatch(e.path)}
    reader = _Reader(run, tree, files)
    found = [await _python(reader), await _node(reader), *_others(files)]
    return [s for s in found if s is not None]


class _Reader:
    """Files of the tree by name."""

    def __init__(self, run: RunRepository, tree: str, files: set[bytes]) -> None:
        self._run = run
        self._tree = tree
        self.files = files

    async def read(self, path: bytes) -> bytes:
        return (await self._run.read(self._tree, path) or b"") if path in self.files else b""


def _suite(suite_id: str, command: str, protects: list[str]) -> Suite:
    return Suite(id=suite_id, command=command, detected=True, protects=protects)


async def _python(reader: _Reader) -> Suite | None:
    tests = sorted(p for p in reader.files if _PY_TEST.fullmatch(p))
    protects = ["**/test_*.py", "**/*_test.py"]
    if await _pytest_configured(reader):
        return _suite("pytest", "python3 -m pytest -q", protects)
    texts = [await reader.read(p) for p in tests[:_MAX_READ_FILES]]
    if any(_needs_pytest(text) for text in texts):
        return _suite("pytest", "python3 -m pytest -q", protects)
    cases = [p for p, text in zip(tests, texts, strict=False) if b"TestCase" in text]
    return _suite("unittest", _unittest_command(cases, reader.files), protects) if cases else None


async def _pytest_configured(reader: _Reader) -> bool:
    if {b"pytest.ini", b".pytest.ini", b"conftest.py", b"tests/conftest.py", b"test/conftest.py"} & reader.files:
        return True
    if b"[tool:pytest]" in await reader.read(b"setup.cfg") or b"[pytest]" in await reader.read(b"tox.ini"):
        return True
    return "pytest" in _table(_toml(await reader.read(b"pyproject.toml")), "tool")


def _toml(data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8", "replace"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _table(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _needs_pytest(text: bytes) -> bool:
    if re.search(rb"^(?:async )?def test", text, re.MULTILINE) or re.search(rb"^\s*(?:import|from) pytest\b", text, re.MULTILINE):
        return True
    return bool(re.search(rb"^class Test\w*(?:\(\))?:", text, re.MULTILINE))


def _unittest_command(cases: list[bytes], files: set[bytes]) -> str:
    """``discover`` does not enter folders without ``__init__.py``: then it starts in the folder of the tests."""
    command = "python3 -m unittest discover -q"
    tops = {p.split(b"/", 1)[0] for p in cases if b"/" in p}
    if any(b"/" not in p for p in cases) or len(tops) != 1:
        return command + _pattern(cases)
    top = tops.pop()
    plain = re.fullmatch(rb"[\w.-]+", top) and not top.startswith(b"-")
    if top + b"/__init__.py" in files or not plain:
        return command + _pattern(cases)
    return f"{command} -s {top.decode()}{_pattern(cases)}"


def _pattern(cases: list[bytes]) -> str:
    names = [p.rsplit(b"/", 1)[-1] for p in cases]
    return "" if any(n.startswith(b"test_") for n in names) else " -p '*_test.py'"


async def _node(reader: _Reader) -> Suite | None:
    protects = ["**/*.test.*", "**/*.spec.*", "test/**", "**/__tests__/**"]
    script = _table(_json(await reader.read(b"package.json")), "scripts").get("test")
    if isinstance(script, str) and script.strip() and "no test specified" not in script:
        return _suite("npm-test", "npm test", protects)
    if any(_JS_TEST.fullmatch(p) for p in reader.files):
        return _suite("node-test", "node --test", protects)
    return None


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _others(files: set[bytes]) -> list[Suite]:
    rules: list[tuple[bool, str, str, list[str]]] = [
        (b"go.mod" in files and any(p.endswith(b"_test.go") for p in files), "go-test", "go test ./...", ["**/*_test.go"]),
        (b"Cargo.toml" in files, "cargo-test", "cargo test", ["tests/**"]),
        (b"pom.xml" in files, "maven-test", "mvn -B -o test", ["src/test/**"]),
        (b"gradlew" in files, "gradle-test", "./gradlew --offline test", ["src/test/**"]),
        (b"Gemfile" in files and any(p.endswith(b"_spec.rb") for p in files), "rspec", "bundle exec rspec", ["spec/**"]),
        (b"Rakefile" in files and any(p.startswith(b"test/") for p in files), "rake-test", "rake test", ["test/**"]),
        (any(p.endswith((b".sln", b".csproj")) for p in files), "dotnet-test", "dotnet test", ["**/*Tests/**"]),
    ]
    return [_suite(suite_id, command, protects) for found, suite_id, command, protects in rules if found]
