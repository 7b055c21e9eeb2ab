"""Folders of an installation that no room owns."""

from __future__ import annotations

from pathlib import Path


def runtime_folder(home: Path) -> Path:
    """Where sandboxes keep their books: on the disk of the workspaces, so that a probe of overlays speaks for them."""
    folder = home / "runtime"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
