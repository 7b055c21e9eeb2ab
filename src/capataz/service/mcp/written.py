"""Programs that a model wrote: in a folder of their own, so that where a file lies says who vouches for it."""

from __future__ import annotations

import keyword
import os
import tempfile
from pathlib import Path

from capataz.contracts.errors import UsageError
from capataz.wiring.isolation import written_folder

MAX_BYTES = 1 << 20
_HEAD = "# Written by a model over MCP: runs in a sandbox.\n"


def write(home: Path, name: str, source: str) -> Path:
    """Stores ``NAME.py``, replacing one of the same name in one step; runs keep the sources that they pinned. Raises ``UsageError``."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or len(name) > 80:
        raise UsageError(f"{name!r} is no program's name; use letters, digits and underscores, as for a Python module")
    data = (_HEAD + source.removeprefix(_HEAD)).encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        raise UsageError(f"the program has {len(data)} bytes; at most {MAX_BYTES} are taken")
    folder = written_folder(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    target = folder / f"{name}.py"
    Path(temporary).replace(target)
    return target


def listed(home: Path) -> list[str]:
    return sorted(path.stem for path in written_folder(home).glob("[!.]*.py"))


def place(home: Path, name: str) -> Path | None:
    """The file of a written program (``name`` or ``name:program``); None: there is none."""
    stem = name.partition(":")[0]
    file = written_folder(home) / f"{stem}.py"
    return file if stem.isidentifier() and file.is_file() else None
