"""A Python process in a bubblewrap of its own that keeps one socket to its parent: where programs that a model wrote run.

Inside there is the interpreter with its packages, read-only, a private ``/tmp``, and nothing else: no network, no environment, no
files of the host, no capabilities.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capataz.sandbox import seccomp, system
from capataz.sandbox.bubblewrap import check_machine, find_bwrap, pipe_with

_PACKAGE = Path(__file__).parents[1]
_TMP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Confined:
    """A command line, and descriptors that it must inherit; the caller closes them."""

    argv: list[str]
    descriptors: list[int]


def confine(arguments: list[str], env: Mapping[str, str], runtime_dir: Path) -> Confined:
    """``python ARGUMENTS`` in a sandbox. Raises ``SandboxUnavailable``."""
    check_machine()
    laid_out = system.laid(runtime_dir)
    search = _packages()
    options = [
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-net", "--disable-userns",
        "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL",
        "--clearenv", *_variables({**env, "PYTHONPATH": ":".join(map(str, search))}),
        *system.mounts(laid_out),
        "--dev", "/dev", "--remount-ro", "/dev", *system.proc(laid_out),
        "--size", str(_TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp",
        *_read_only(search),
        "--remount-ro", "/", "--chdir", "/",
    ]  # fmt: skip
    code = pipe_with(seccomp.program(memfd=False))
    given = pipe_with(b"\0".join(option.encode() for option in options) + b"\0")
    argv = [str(find_bwrap()), "--args", str(given), "--seccomp", str(code), "--", str(system.interpreter()), *arguments]
    return Confined(argv, [code, given])


def _variables(env: Mapping[str, str]) -> list[str]:
    return [part for name, value in env.items() for part in ("--setenv", name, value)]


def _packages() -> list[Path]:
    """Where this Python finds what is installed, and this very ``capataz``."""
    found = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    return list(dict.fromkeys([_PACKAGE.parent, *found]))


def _read_only(search: list[Path]) -> list[str]:
    """The package alone where it lies in a source tree, which may hold more."""
    options: list[str] = []
    for folder in search:
        place = _PACKAGE if folder == _PACKAGE.parent and folder.name not in ("site-packages", "dist-packages") else folder
        if place.is_dir() and not place.is_relative_to("/usr") and not place.is_relative_to(sys.base_prefix):
            options += ["--ro-bind", str(place), str(place)]
    return options
