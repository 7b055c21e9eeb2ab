"""The ``.git`` that a workspace shows: enough for ``git status``, ``diff``, ``log`` and ``blame``, written and never read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capataz.contracts.sandbox import Mount
from capataz.workspace.git import NEUTRAL_ATTRIBUTES

BRANCH = "capataz"
_INSIDE = "/capataz/objects"


@dataclass(frozen=True, slots=True)
class ThrowAway:
    """What the throw-away repository refers to."""

    base_sha: str
    index: Callable[[], bytes]
    objects: tuple[Path, ...]                  # host folders, mounted read-only
    shallow: bytes
    object_format: str

    def mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(folder, f"{_INSIDE}/{n}") for n, folder in enumerate(self.objects))

    def write(self, folder: Path) -> None:
        """Makes ``folder`` (a new ``.git``), owned by this user."""
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
            (folder / name).mkdir(parents=True)
        (folder / "HEAD").write_text(f"ref: refs/heads/{BRANCH}\n")
        (folder / "refs/heads" / BRANCH).write_text(f"{self.base_sha}\n")
        (folder / "config").write_text(self._config())
        (folder / "info/attributes").write_bytes(NEUTRAL_ATTRIBUTES)
        (folder / "info/exclude").write_text("")
        alternates = "".join(f"{m.target}\n" for m in self.mounts())
        (folder / "objects/info/alternates").write_text(alternates)
        if self.shallow:
            (folder / "shallow").write_bytes(self.shallow)
        (folder / "index").write_bytes(self.index())

    def _config(self) -> str:
        # Owner, inode and change time differ between the checkout and what the sandbox shows: only size and time are compared.
        version, extension = ("1", "[extensions]\n\tobjectFormat = sha256\n") if self.object_format == "sha256" else ("0", "")
        return (
            f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n\tcheckStat = minimal\n\ttrustCtime = false\n"
            "\tlogAllRefUpdates = true\n\tautocrlf = false\n[gc]\n\tauto = 0\n[user]\n\tname = worker\n\temail = worker@localhost\n"
            f"[advice]\n\tdetachedHead = false\n{extension}"
        )


def shallow_of(common_dir: Path) -> bytes:
    """The source's shallow boundary; empty when it has its whole history."""
    try:
        return (common_dir / "shallow").read_bytes()
    except FileNotFoundError:
        return b""
