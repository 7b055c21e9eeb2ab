"""The helper's code as it is carried into sandboxes: compiled once a runtime folder, so that no start pays for it."""

from __future__ import annotations

import hashlib
import py_compile
import shutil
import sys
from functools import lru_cache
from pathlib import Path

from capataz.sandbox.system import build_folder

PACKAGE = "capataz_resident"
_SOURCE = Path(__file__).parent / "resident"


def carried(runtime_dir: Path) -> Path:
    """See ``_carried``; looked up once a process."""
    folder = _carried(runtime_dir)
    if not folder.is_dir():
        _carried.cache_clear()
        folder = _carried(runtime_dir)
    return folder


@lru_cache(maxsize=4)
def _carried(runtime_dir: Path) -> Path:
    """A folder that holds the package ``capataz_resident`` and nothing else. Safe to call from many processes at once."""
    modules = sorted(_SOURCE.glob("*.py"))
    digest = hashlib.sha256(b"\0".join([sys.version.encode(), *(path.read_bytes() for path in modules)])).hexdigest()[:16]
    folder = runtime_dir / "sandbox-helper" / digest
    if not folder.is_dir():
        build_folder(folder, lambda place: _compile(place / PACKAGE, modules))
    return folder


def _compile(package: Path, modules: list[Path]) -> None:
    package.mkdir()
    for module in modules:
        copy = package / module.name
        shutil.copyfile(module, copy)
        # unchecked: the folder is named by the digest of what is in it, and a stat of each source would cost time
        py_compile.compile(str(copy), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def command(interpreter: Path, library: str, root: str, control: int, where: str) -> list[str]:
    """The helper's command line."""
    start = f"import sys; sys.path.insert(0, {library!r}); from {PACKAGE}.main import main; main()"
    return [str(interpreter), "-I", "-S", "-E", "-B", "-c", start, root, str(control), where]
