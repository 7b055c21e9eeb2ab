"""Edited sources of a run: they keep the module's name, which keys of steps and children contain."""

from __future__ import annotations

import re
from pathlib import Path

from capataz.contracts.errors import UsageError
from capataz.vm.closure import Source, find
from capataz.vm.importer import ENTRY


def find_edited(given: str, ref: str) -> Source:
    """The sources in ``FILE[:NAME]`` that go on with a run of ``ref`` (``module:name``). Raises ``NotFound``, ``ProgramLoadError``.

    An edit under another file name (``audit2.py``) stands for the run's own module.
    """
    module, _, old_name = ref.rpartition(":")
    place, colon, name = given.rpartition(":")
    if not colon or "/" in name or name.endswith(".py"):
        place, name = given, old_name
    if not place:
        raise UsageError("--with needs a file")
    root = _package_root(Path(place), module)
    if root is not None:
        return find(f"{module}:{name}", cwd=root)
    return _renamed(find(f"{place}:{name}"), module)


def _package_root(file: Path, module: str) -> Path | None:
    """The folder to import a dotted module from when the file is that module."""
    parts = module.split(".")
    path = file.expanduser().absolute()
    if len(parts) == 1 or path.with_suffix("").parts[-len(parts) :] != tuple(parts):
        return None
    return path.parents[len(parts) - 1]


def _renamed(found: Source, module: str) -> Source:
    own, _, name = found.ref.rpartition(":")
    path = next((p for p in (f"{own}.py", f"{own.removeprefix('program_')}.py") if p in found.files), None)
    others = [text for place, text in found.files.items() if place not in (path, ENTRY)]
    imported = any(re.search(rf"^\s*(from|import)\s+{re.escape(own)}\b", text, re.MULTILINE) for text in others)
    if own == module or "." in module or path is None or imported or f"{module}.py" in found.files:
        return found
    ref = f"{module}:{name}"
    files = {f"{module}.py" if place == path else place: text for place, text in found.files.items()}
    return Source(ref, {**files, ENTRY: ref})
