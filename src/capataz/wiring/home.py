"""Folders of an installation that no room owns."""

from __future__ import annotations

import os
from pathlib import Path


def runtime_folder(home: Path) -> Path:
    """A private folder for sockets and sandbox bookkeeping; short, since a socket path has 107 bytes."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    folder = base / f"capataz-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.stat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        folder = home / "runtime"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
