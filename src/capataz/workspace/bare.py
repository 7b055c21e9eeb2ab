"""Making a GIT_DIR of our own: empty configuration, the source's objects as alternates, its shallow boundary copied."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace.files import remove_folder, write_whole
from capataz.workspace.git import NEUTRAL_ATTRIBUTES, Git
from capataz.workspace.inspection import object_folders, quoted_alternate
from capataz.workspace.throwaway import shallow_of


def make_bare(git_dir: Path, info: RepositoryInfo, *, borrow: list[Path]) -> None:
    """Fills a new folder. ``borrow``: the object folders that become alternates."""
    for name in ("objects/info", "objects/pack", "refs/heads", "info"):
        (git_dir / name).mkdir(parents=True)
    (git_dir / "HEAD").write_text("ref: refs/heads/none\n")
    version, extension = ("1", "[extensions]\n\tobjectFormat = sha256\n") if info.object_format == "sha256" else ("0", "")
    (git_dir / "config").write_text(f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = true\n{extension}")
    (git_dir / "info/attributes").write_bytes(NEUTRAL_ATTRIBUTES)
    (git_dir / "info/exclude").write_text("")
    refresh(git_dir, info, borrow)


def refresh(git_dir: Path, info: RepositoryInfo, borrow: list[Path]) -> None:
    """The parts that follow the source, written anew: it may have moved or become deeper since."""
    lines = b"".join(quoted_alternate(folder) + b"\n" for folder in borrow)
    write_whole(git_dir / "objects/info/alternates", lines)
    shallow = shallow_of(info.common_dir)
    if shallow:
        write_whole(git_dir / "shallow", shallow)
    else:
        (git_dir / "shallow").unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(folder: Path, info: RepositoryInfo, more_objects: list[Path]) -> Iterator[Git]:
    """A GIT_DIR for one operation on the source: its objects and those of runs are readable, nothing is writable there."""
    git_dir = folder / f"git-{uuid.uuid4().hex}"
    try:
        make_bare(git_dir, info, borrow=[*object_folders(info.common_dir), *more_objects])
        yield Git(git_dir)
    finally:
        remove_folder(git_dir)
