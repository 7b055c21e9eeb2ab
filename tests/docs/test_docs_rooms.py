"""The table of rooms in CONTRIBUTING.md, `.importlinter` and the code say the same."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docs.generate import ROOT

SOURCE = ROOT / "src" / "capataz"
ANYWHERE = {"pydantic", "pydantic_core"}
SURFACE = {"coding", "__init__"}
NO_CODE = (SOURCE / "demo", SOURCE / "evidence" / "reporters")    # files for sandboxes, not imported here


def test_libraries_of_the_table_are_those_of_the_code() -> None:
    used: dict[str, set[str]] = defaultdict(set)
    for room, module in _imports():
        top = module.partition(".")[0]
        if top not in {"capataz", *sys.stdlib_module_names, *ANYWHERE}:
            used[room].add(top)
    assert {room: libraries for room, (_, libraries) in _table().items() if libraries} == dict(used)


def test_each_library_is_protected_by_a_contract() -> None:
    protected: dict[str, set[str]] = defaultdict(set)
    for section in _contracts().values():
        if section.get("type") == "protected":
            for importer in section["allowed_importers"].split():
                protected[importer.removeprefix("capataz.")] |= set(section["protected_modules"].split())
    assert {room: libraries for room, (_, libraries) in _table().items() if libraries} == {
        room: libraries for room, libraries in protected.items() if not any(name.startswith("capataz") for name in libraries)
    }


def test_rooms_import_what_the_table_allows() -> None:
    allowed = {room: rooms for room, (rooms, _) in _table().items()}
    wrong = {
        (room, target) for room, module in _imports()
        if (target := _room(module)) is not None and target != room and target not in allowed[room]
    }
    assert not wrong


def test_the_table_has_every_room() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert set(_table()) - SURFACE == rooms - {"demo"}


def _table() -> dict[str, tuple[set[str], set[str]]]:
    """Room to the rooms that it may import and its libraries."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    found: dict[str, tuple[set[str], set[str]]] = {}
    for names, _, may, libraries in rows:
        allowed = set(re.findall(r"`(\w+)`", may))
        if "authoring surface" in may:
            allowed |= SURFACE
        if may.startswith("all above"):
            allowed = set(found) - allowed
        for name in re.findall(r"`(\w+)(?:\.py)?`", names):
            found[name] = (allowed | (SURFACE if name in SURFACE else set()), {item.strip() for item in libraries.split(",") if item.strip()})
    return found


def _contracts() -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", "utf-8")
    return {name: dict(parser[name]) for name in parser.sections()}


@cache
def _imports() -> list[tuple[str, str]]:
    """(room, imported module), imports inside functions included."""
    files = [file for file in sorted(SOURCE.rglob("*.py")) if not any(file.is_relative_to(folder) for folder in NO_CODE)]
    return [(file.relative_to(SOURCE).parts[0].removesuffix(".py"), module) for file in files for module in _modules(file)]


def _modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "capataz":
            yield from (f"capataz.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _room(module: str) -> str | None:
    """The room of a module of ours; what `capataz` itself offers belongs to ``__init__``."""
    top, _, rest = module.partition(".")
    if top != "capataz":
        return None
    name = rest.partition(".")[0]
    return name if name and ((SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()) else "__init__"
