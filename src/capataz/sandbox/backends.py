"""Backends by name."""

from __future__ import annotations

from pathlib import Path

from capataz.contracts.errors import SandboxUnavailable, UsageError
from capataz.contracts.sandbox import Sandbox

NAMES = ("bubblewrap", "gvisor", "container", "local")


def make_sandbox(name: str, *, runtime_dir: Path) -> Sandbox:
    """The backend called ``name``; it keeps its folders below ``runtime_dir`` and takes away what a killed worker left there.

    Raises ``SandboxUnavailable`` for a backend that this version or machine lacks, ``UsageError`` for an unknown name.
    """
    if name == "bubblewrap":
        from capataz.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(runtime_dir)
    if name == "local":
        from capataz.sandbox.local import LocalSandbox

        return LocalSandbox(runtime_dir)
    if name in NAMES:
        raise SandboxUnavailable(f"the {name} backend is not part of this version; use --sandbox bubblewrap")
    raise UsageError(f"no sandbox backend is called {name!r}; there are {', '.join(NAMES)}")
