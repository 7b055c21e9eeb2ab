"""The port's promises, attacks included, against every backend: as this user, and bubblewrap as an ordinary user too.

The three suites run side by side, each in its own process (one of them as another user), since most of their time is waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from capataz.testing.sandbox_conformance import Finding, names

_ORDINARY = 1000
_KINDS = ("bubblewrap", "local", "ordinary")
_SCRIPT = """
import asyncio, dataclasses, json, sys
from pathlib import Path
from capataz.sandbox import make_sandbox
from capataz.testing.sandbox_conformance import run_suite
folder, kind = Path(sys.argv[1]), sys.argv[2]
sandbox = make_sandbox("local" if kind == "local" else "bubblewrap", runtime_dir=folder / "rt")
found = asyncio.run(run_suite(sandbox, folder, quick=kind != "bubblewrap"))
print(json.dumps([dataclasses.asdict(f) for f in found]))
"""


@pytest.fixture(scope="module")
def findings() -> Iterator[dict[str, dict[str, Finding] | str]]:
    """By kind: the findings, or why there are none."""
    with ExitStack() as stack:
        running = {kind: _start(kind, stack.enter_context(tempfile.TemporaryDirectory())) for kind in _KINDS}
        yield {kind: started if isinstance(started, str) else _collect(started) for kind, started in running.items()}


def _start(kind: str, folder: str) -> subprocess.Popen[bytes] | str:
    env = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONDONTWRITEBYTECODE": "1"}
    if kind != "ordinary":
        return subprocess.Popen([sys.executable, "-c", _SCRIPT, folder, kind], cwd=folder, env=env, stdout=subprocess.PIPE)
    if os.geteuid() != 0:
        return "this is an ordinary user already"
    python = _python_for_all()
    if python is None:
        return "no Python of this version that an ordinary user may execute"
    os.chown(folder, _ORDINARY, _ORDINARY)
    user = {"user": _ORDINARY, "group": _ORDINARY, "extra_groups": []}
    return subprocess.Popen([python, "-c", _SCRIPT, folder, kind], cwd=folder, env={**env, "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, **user)


def _collect(process: subprocess.Popen[bytes]) -> dict[str, Finding]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return {f["check"]: Finding(**f) for f in json.loads(out)}


def _python_for_all() -> str | None:
    """An interpreter of this version that an ordinary user can execute (this one may lie in root's home)."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    probe = f"import sys; print(sys.version_info[:2] == {tuple(sys.version_info[:2])})"
    for candidate in (os.path.realpath(sys.executable), f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        try:
            done = subprocess.run([candidate, "-c", probe], user=_ORDINARY, group=_ORDINARY, extra_groups=[], cwd="/", env={}, capture_output=True, check=False)
        except OSError:
            continue
        if done.stdout == b"True\n":
            return candidate
    return None


@pytest.mark.parametrize("check", names())
@pytest.mark.parametrize("kind", _KINDS)
def test_backend_keeps_the_port(findings: dict[str, dict[str, Finding] | str], kind: str, check: str) -> None:
    found = findings[kind]
    if isinstance(found, str):
        pytest.skip(found)
    finding = found[check]
    if finding.status == "not enforced" and kind == "local":
        assert set(finding.detail.split(", ")) <= {"filesystem", "network", "processes", "seccomp", "user-namespaces", "overlay"}
        pytest.skip(finding.detail)
    assert finding.status == "passed", finding.detail
