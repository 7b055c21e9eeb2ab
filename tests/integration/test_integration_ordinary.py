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


def environment_of_its_own(python: str, folder: Path) -> str:
    """A virtual environment of ``python`` that sees the packages of ours: everything that is started finds them too."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    source = str(Path(sys.modules["capataz"].__file__ or "").parents[1])
    paths = [source, *(path for path in sys.path if path.endswith("site-packages"))]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in paths))
    return str(folder / "bin" / "python")


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

    monkeypatch.setattr(sys, "executable", environment_of_its_own(python, place / "venv"))
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    script = place / "script.py"
    script.write_text((CASES / "two_workers.py").read_text())
    repo = small_repository(place / "repo")                # root's, readable by all
    cli = Cli(place / "home", place / "log.jsonl", AS_USER)
    try:
        _job(cli, repo, script)
    finally:
        cli.run("db", "stop")


def _job(cli: Cli, repo: Path, script: Path) -> None:
    before = Source.of(repo)
    done = cli.run(*do_args(repo, script), "--yes")
    assert done.code in (1, 64), done
    shown = done.json
    assert "error" not in shown, done
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
