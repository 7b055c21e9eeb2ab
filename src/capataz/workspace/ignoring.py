"""Which new paths are ignored: by the base's ``.gitignore`` files, then by a list of what tools leave behind."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

from capataz.contracts.errors import GitFailed
from capataz.workspace.files import remove_folder
from capataz.workspace.listing import entries
from capataz.workspace.objects import ObjectStore

BUILT_IN = (
    "__pycache__/", "*.pyc", "*.pyo", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/", ".tox/", ".nox/",
    ".venv/", ".eggs/", "*.egg-info/", ".coverage", ".coverage.*", "htmlcov/", ".ipynb_checkpoints/", "node_modules/",
    ".npm/", ".yarn/cache/", ".pnpm-store/", ".nyc_output/", ".next/", ".turbo/", ".parcel-cache/", ".gradle/", ".cache/",
    ".DS_Store", "Thumbs.db", "*.swp", "*~",
)
"""Patterns in ``.gitignore`` form, weaker than those of the repository."""


class Ignoring:
    """Asks ``git check-ignore`` over a folder that holds nothing but the base's ``.gitignore`` files."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._lock = threading.Lock()

    def ignored(self, base_tree: str, paths: list[bytes]) -> set[bytes]:
        asked = [p for p in paths if p and not p.startswith(b"/")]
        if not asked:
            return set()
        with self._lock:
            skeleton = self._skeleton(base_tree)
        result = self._store.git.run(
            "check-ignore", "--no-index", "-z", "--stdin",
            # "./" in front: a name such as ":(top)x" is a name, not pathspec magic (which cannot be switched off here).
            stdin=b"".join(b"./" + p + b"\0" for p in asked),
            env={"GIT_WORK_TREE": str(skeleton), "GIT_LITERAL_PATHSPECS": "0"},
        )
        if result.code not in (0, 1):
            raise GitFailed(f"git check-ignore failed: {result.words()}")
        return {p.removeprefix(b"./") for p in result.stdout.split(b"\0")[:-1]}

    def _skeleton(self, base_tree: str) -> Path:
        target = self._folder / base_tree
        if target.is_dir():
            return target
        temporary = self._folder / f".new-{uuid.uuid4().hex}"
        temporary.mkdir(parents=True)
        try:
            for entry in entries(self._store.git, base_tree):
                if entry.path.rpartition(b"/")[2] == b".gitignore" and entry.mode.startswith("100"):
                    file = temporary / os.fsdecode(entry.path)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(self._store.read(entry.sha, "blob"))
            if not target.is_dir():
                temporary.rename(target)
        finally:
            remove_folder(temporary)
        return target
