"""The port's promises, attacks included, against every backend: as this user, and bubblewrap as an ordinary user too."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from capataz.sandbox import make_sandbox
from capataz.testing.sandbox_conformance import Finding, names, run_suite

_ORDINARY = 1000
_SCRIPT = """
import asyncio, dataclasses, json, sys
from pathlib import Path
from capataz.sandbox import make_sandbox
from capataz.testing.sandbox_conformance import run_suite
folder = Path(sys.argv[1])
found = asyncio.run(run_suite(make_sandbox("bubblewrap", runtime_dir=folder / "rt"), folder, quick=True))
print(json.dumps([dataclasses.asdict(f) for f in found]))
"""


@pytest.fixture(scope="module")
def bubblewrap(tmp_path_factory) -> dict[str, Finding]:
    return _suite("bubblewrap", tmp_path_factory.mktemp("bubblewrap"), quick=False)


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> dict[str, Finding]:
    return _suite("local", tmp_path_factory.mktemp("local"), quick=True)


@pytest.fixture(scope="module")
def ordinary_user() -> dict[str, Finding]:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    python = _python_for_all()
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, _ORDINARY, _ORDINARY)
        done = subprocess.run(
            [python, "-c", _SCRIPT, folder], user=_ORDINARY, group=_ORDINARY, extra_groups=[], cwd=folder, capture_output=True, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    assert done.returncode == 0, done.stderr.decode()
    return {f["check"]: Finding(**f) for f in json.loads(done.stdout)}


def _python_for_all() -> str:
    """An interpreter of this version that an ordinary user can execute (this one may lie in root's home)."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (os.path.realpath(sys.executable), f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        probe = [candidate, "-c", f"import sys; print(sys.version_info[:2] == {tuple(sys.version_info[:2])})"]
        try:
            if subprocess.run(probe, user=_ORDINARY, group=_ORDINARY, extra_groups=[], cwd="/", env={}, capture_output=True, check=False).stdout == b"True\n":
                return candidate
        except OSError:
            continue
    pytest.skip(f"no Python {version} that an ordinary user may execute")


def _suite(backend: str, folder: Path, quick: bool) -> dict[str, Finding]:
    sandbox = make_sandbox(backend, runtime_dir=folder / "rt")
    return {finding.check: finding for finding in asyncio.run(run_suite(sandbox, folder, quick=quick))}


@pytest.mark.parametrize("check", names())
def test_bubblewrap(bubblewrap: dict[str, Finding], check: str) -> None:
    assert bubblewrap[check].status == "passed", bubblewrap[check].detail


@pytest.mark.parametrize("check", names())
def test_bubblewrap_as_an_ordinary_user(ordinary_user: dict[str, Finding], check: str) -> None:
    assert ordinary_user[check].status == "passed", ordinary_user[check].detail


@pytest.mark.parametrize("check", names())
def test_local(local: dict[str, Finding], check: str) -> None:
    finding = local[check]
    if finding.status == "not enforced":
        pytest.skip(finding.detail)
    assert finding.status == "passed", finding.detail


def test_only_isolation_is_missing_in_local(local: dict[str, Finding]) -> None:
    missing = {word for f in local.values() if f.status == "not enforced" for word in f.detail.split(", ")}
    assert missing <= {"filesystem", "network", "processes", "seccomp", "user-namespaces", "overlay"}
