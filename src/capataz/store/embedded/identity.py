"""As whom the embedded server runs. PostgreSQL refuses uid 0, so root needs a user namespace, or else another uid."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from capataz.contracts.errors import StoreUnavailable
from capataz.store.embedded import postgres_supervisor as supervisor

FALLBACK_UID = 64735                           # nobody's: no name, no home, no other service


def server_uid(folder: Path, programs: Path) -> str:
    """``same``, ``namespace`` or a uid (see ``postgres_supervisor``). Raises ``StoreUnavailable`` naming the folder in the way."""
    if os.geteuid() != 0:
        return "same"
    if namespaces_work():
        _need_way(folder, programs, 0)
        return "namespace"
    _need_way(folder, programs, FALLBACK_UID)
    return str(FALLBACK_UID)


def namespaces_work() -> bool:
    """Whether a child can enter a user namespace as the server would."""
    command = [sys.executable, "-I", "-S", "-c", "pass"]
    try:
        return subprocess.run(command, preexec_fn=supervisor.enter_namespace, capture_output=True, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _need_way(folder: Path, programs: Path, uid: int) -> None:
    """Root passes every folder; the server, without root's powers, may not."""
    for target, cure in ((folder, "choose another place by CAPATAZ_HOME"), (programs, "install Capataz where that uid can read it")):
        blocked = blocked_parent(target, uid)
        if blocked is not None:
            raise StoreUnavailable(f"the embedded PostgreSQL would run as uid {uid}, which may not enter {blocked}; {cure}, or set CAPATAZ_DATABASE_URL")


def blocked_parent(path: Path, uid: int) -> Path | None:
    """The first parent of ``path`` that ``uid`` (with its own group only) may not enter."""
    group = os.getegid() if uid == os.geteuid() else uid
    for parent in reversed(path.resolve().parents):
        there = parent.stat()
        if there.st_uid == uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if there.st_gid == group else stat.S_IXOTH
        if not there.st_mode & needed:
            return parent
    return None
