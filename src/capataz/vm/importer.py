"""Imports a program's pinned source closure before anything on disk."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import io
import linecache
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import IO, Any

from capataz.vm.sites import register

ENTRY = "@entry"
"""The key of a closure that holds ``module:name`` instead of a file."""


PREFIX = "program_"
"""What stands before a program file's stem when it is no module name, or one that is taken."""


def spelled(stem: str) -> str:
    """A file's stem as a name."""
    return re.sub(r"\W", "_", stem)


def main_file(files: Mapping[str, str]) -> tuple[str, str] | None:
    """Module and path of a program file whose module is not called like it (``deep-audit.py``, ``json.py``)."""
    module = files.get(ENTRY, "").rpartition(":")[0]
    if not module or "." in module or f"{module}.py" in files or f"{module}/__init__.py" in files:
        return None
    wanted = (module, module.removeprefix(PREFIX))
    return next(((module, p) for p in files if p.endswith(".py") and "/" not in p and spelled(p[:-3]) in wanted), None)


class ClosureFinder(importlib.abc.MetaPathFinder):
    """Serves modules from ``files``. A folder without ``__init__.py`` is a namespace package, as on disk."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._main = main_file(files) or ("", "")

    def _find(self, name: str) -> tuple[str, bool] | None:
        """The path of a module, and whether it is a package. A program called ``json.py`` is no ``json`` to anybody."""
        module, main = self._main
        if name == module:
            return main, False
        stem = name.replace(".", "/")
        if f"{stem}/__init__.py" in self._files:
            return f"{stem}/__init__.py", True
        return (f"{stem}.py", False) if f"{stem}.py" in self._files and f"{stem}.py" != main else None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = self._find(fullname)
        if found is not None:
            loader = _Loader(self._files, *found)
            spec = importlib.machinery.ModuleSpec(fullname, loader, origin=found[0], is_package=found[1])
            spec.has_location = True
            return spec
        prefix = fullname.replace(".", "/") + "/"
        if any(name.startswith(prefix) for name in self._files) and fullname not in ("capataz", "capataz.programs"):
            on_disk = importlib.machinery.PathFinder.find_spec(fullname, path)  # an installed package whose one module is pinned
            return on_disk or importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        return None


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, files: Mapping[str, str], path: str, package: bool) -> None:
        self._files = files
        self._path = path
        self._package = package

    def is_package(self, fullname: str) -> bool:
        return self._package

    def get_source(self, fullname: str) -> str:
        return self._files[self._path]

    def get_code(self, fullname: str) -> CodeType:
        source = self._files[self._path]
        register(self._path)
        linecache.cache[self._path] = (len(source), None, source.splitlines(keepends=True), self._path)
        return compile(source, self._path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def get_data(self, path: str) -> bytes:
        """Data files of the closure, for ``pkgutil.get_data``."""
        text = self._files.get(posixpath.normpath(path))
        if text is None:
            raise FileNotFoundError(path)
        return text.encode("utf-8")

    def get_resource_reader(self, fullname: str) -> _Reader:
        return _Reader(self._files, posixpath.dirname(self._path))


class _Reader:
    """``importlib.resources.files(package)`` on the closure."""

    def __init__(self, files: Mapping[str, str], folder: str) -> None:
        self._files = files
        self._folder = folder

    def files(self) -> _Node:
        return _Node(self._files, self._folder)


class _Node:
    """A path in the closure, as ``importlib.resources`` shows it (its ``Traversable`` protocol)."""

    def __init__(self, files: Mapping[str, str], path: str) -> None:
        self._files = files
        self._path = path

    @property
    def name(self) -> str:
        return posixpath.basename(self._path)

    def joinpath(self, *parts: Any) -> _Node:
        return _Node(self._files, posixpath.normpath(posixpath.join(self._path, *map(str, parts))))

    def __truediv__(self, part: Any) -> _Node:
        return self.joinpath(part)

    def is_file(self) -> bool:
        return self._path in self._files

    def is_dir(self) -> bool:
        return any(name.startswith(f"{self._path}/") for name in self._files)

    def iterdir(self) -> Iterator[_Node]:
        prefix = f"{self._path}/"
        names = dict.fromkeys(name[len(prefix) :].partition("/")[0] for name in self._files if name.startswith(prefix))
        return (self.joinpath(name) for name in names)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        text = self._files.get(self._path)
        if text is None:
            raise FileNotFoundError(self._path)
        return text

    def read_bytes(self) -> bytes:
        return self.read_text().encode("utf-8")

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        return io.BytesIO(self.read_bytes()) if "b" in mode else io.StringIO(self.read_text())


def install(files: Mapping[str, str]) -> None:
    """Puts the closure before everything on disk."""
    sys.meta_path.insert(0, ClosureFinder(files))
