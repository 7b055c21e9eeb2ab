"""A session's own mounts as bwrap's options: the workspace, what is masked in it, what is added read-only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from capataz.contracts.errors import SandboxUnavailable
from capataz.contracts.sandbox import WORKSPACE, Mount, SandboxSpec, WorkspaceMount
from capataz.sandbox import system


def workspace(mount: WorkspaceMount) -> list[str]:
    upper = str(folder(mount.upper, "workspace"))
    if mount.lower is None:
        return ["--bind" if mount.writable else "--ro-bind", upper, WORKSPACE]
    lower = str(folder(mount.lower, "workspace"))
    if not mount.writable:
        return ["--overlay-src", lower, "--overlay-src", upper, "--ro-overlay", WORKSPACE]
    if mount.work is None:
        raise SandboxUnavailable("an overlay workspace needs its work folder")
    return ["--overlay-src", lower, "--overlay", upper, str(folder(mount.work, "workspace")), WORKSPACE]


def folder(path: Path | None, what: str) -> Path:
    if path is None or not path.is_dir() or path.is_symlink():
        raise SandboxUnavailable(f"the {what} folder {path} does not exist")
    return path.absolute()


def read_only(mounts: tuple[Mount, ...]) -> list[str]:
    options: list[str] = []
    for mount in mounts:
        if not mount.target.startswith("/") or ".." in mount.target.split("/"):
            raise SandboxUnavailable(f"a mount's target must be an absolute path without '..': {mount.target!r}")
        if not mount.source.exists() or system.is_socket_or_device(mount.source):
            raise SandboxUnavailable(f"{mount.source} cannot be mounted: it is no file or folder")
        options += ["--ro-bind", str(mount.source), mount.target]
    return options


def hidden(mount: WorkspaceMount, path: bytes, laid_out: Path) -> list[str]:
    """Masks what the path is now, in the layer that shows it. A link is no content of its own, a missing path has none."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not parts or b".." in parts:
        raise SandboxUnavailable("a hidden path must be relative and inside the workspace")
    mode = _mode_in(mount.upper, parts)
    if mode is None and mount.lower is not None:
        mode = _mode_in(mount.lower, parts)
    if mode is None or stat.S_ISLNK(mode) or stat.S_ISCHR(mode):
        return []
    mask = laid_out / ("masked-folder" if stat.S_ISDIR(mode) else "masked-file")
    return ["--ro-bind", str(mask), f"{WORKSPACE}/{os.fsdecode(b'/'.join(parts))}"]


def _mode_in(root: Path, parts: list[bytes]) -> int | None:
    """The mode of a path in one layer, walked without following links; None when it is not there."""
    at = os.fsencode(root)
    mode: int | None = None
    for number, part in enumerate(parts):
        at += b"/" + part
        try:
            mode = os.lstat(at).st_mode
        except OSError:
            return None
        if number < len(parts) - 1 and not stat.S_ISDIR(mode):
            return None
    return mode


def resolver(spec: SandboxSpec) -> list[str]:
    """Names of the network are looked up only where the network is granted."""
    if spec.network != "host":
        return []
    return ["--ro-bind-try", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]
