"""The main job as an ordinary user, on a source that this user may only read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from main_job import CASES, Cli, Source, do_args, git, leftovers, small_repository

UID = 1000
AS_USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")


def interpreter() -> str | None:
    """A Python that the ordinary user may run and that is like ours."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    check = (  # a child too: what the first one may do can come from powers that it still had when it was started
        "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True); "
        f"raise SystemExit(sys.version_info[:2] != {sys.version_info[:2]})"
    )
    for python in (sys.executable, f"/usr/bin/python{wanted}", f"/usr/local/bin/python{wanted}"):
        try:
            done = subprocess.run([*AS_USER, python, "-I", "-c", check], capture_output=True, timeout=60, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


class OrdinaryCli(Cli):
    """``capataz`` as uid 1000, started by the system's own interpreter where ours is root's alone."""

    def environment(self, **more: str) -> dict[str, str]:
        paths = [str(Path(sys.modules["capataz"].__file__ or "").parents[1]), *(p for p in sys.path if p.endswith("site-packages"))]
        return {**super().environment(**more), "HOME": str(self.home.parent), "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter and the ordinary user owns."""
    folder = Path(tempfile.mkdtemp(prefix="capataz-ordinary-"))
    folder.chmod(0o755)
    os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="becoming another user needs root and setpriv")
def test_a_source_that_may_only_be_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = interpreter()
    if python is None:
        pytest.skip("no interpreter that an ordinary user may run")
    import capataz  # noqa: F401  (its place is asked for above)

    monkeypatch.setattr(sys, "executable", python)
    script = place / "script.py"
    script.write_text((CASES / "two_workers.py").read_text())
    repo = small_repository(place / "repo")                # root's, readable by all
    cli = OrdinaryCli(place / "home", place / "log.jsonl", AS_USER)
    try:
        _job(cli, repo, script)
    finally:
        cli.run("db", "stop")


def _job(cli: Cli, repo: Path, script: Path) -> None:
    before = Source.of(repo)
    done = cli.run(*do_args(repo, script), "--yes")
    assert done.code in (1, 64), done
    shown = done.json
    assert shown["reason"]["code"] == "repository_unusable"
    assert "cannot be written by this user" in shown["reason"]["message"] and "Traceback" not in done.err
    assert shown["rounds"][-1]["passed"]
    assert Source.of(repo) == before
    assert leftovers(cli.home) == []
    for path in (repo, *repo.rglob("*")):
        os.lchown(path, UID, UID)
    again = cli.run("resume", str(done.run_id), "--json")
    assert again.code == 0 and again.json["outcome"] == "promoted", again
    assert again.json["candidate"]["sha"] == shown["candidate"]["sha"] == git(repo, "rev-parse", "main")
    assert again.json["usage"]["model_calls"] == shown["usage"]["model_calls"]
    assert {path.lstat().st_uid for path in repo.rglob("*")} == {UID}
