"""The generated pages: current, stable, and a clear line when they are not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import ROOT, main, pages, stale, write
from docs.pages import PAGES

DIGESTS = (
    "import hashlib\nfrom docs.pages import PAGES\n"
    "for name, make in PAGES.items(): print(name, hashlib.sha256(make().encode()).hexdigest())\n"
)


def test_the_committed_pages_are_current_and_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_a_changed_a_missing_and_a_windows_page_are_stale(tmp_path: Path) -> None:
    assert len(write(tmp_path)) == len(PAGES)
    assert list(stale(tmp_path)) == []
    page = tmp_path / "reference" / "cli.md"
    page.write_text(page.read_text("utf-8").replace("capataz do", "capataz redo"), "utf-8")
    (tmp_path / "reference" / "events.md").unlink()
    faults = tmp_path / "reference" / "fault-points.md"
    faults.write_bytes(faults.read_bytes().replace(b"\n", b"\r\n"))
    assert list(stale(tmp_path)) == [
        f"docs/reference/{name}.md is stale: run `python -m docs.generate` and commit the result"
        for name in ("cli", "events", "fault-points")
    ]
    assert write(tmp_path) == ["reference/cli.md", "reference/events.md", "reference/fault-points.md"]
    assert write(tmp_path) == []


def test_check_fails_with_a_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PAGES, "reference/new.md", lambda: "new\n")
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/reference/new.md is stale: run `python -m docs.generate` and commit the result\n"
    assert not (ROOT / "docs" / "reference" / "new.md").exists()


def test_a_disagreement_with_the_code_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from docs.pages import settings

    monkeypatch.setattr(settings, "_ENDPOINT", {name: said for name, said in settings._ENDPOINT.items() if name != "stall"})
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/pages/settings.py: [models.NAME]: not described: stall; described but unknown to the code: none\n"


def test_wrong_use() -> None:
    assert main(["--chek"]) == 64


@pytest.mark.slow
def test_pages_depend_on_the_code_alone(tmp_path: Path) -> None:
    narrow = {"COLUMNS": "33", "TERM": "xterm-256color", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "1"}
    wide = {"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "CAPATAZ_HOME": str(tmp_path)}
    assert _digests(narrow) == _digests(wide) == {name: hashlib.sha256(make().encode()).hexdigest() for name, make in PAGES.items()}


def _digests(env: dict[str, str]) -> dict[str, str]:
    home = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", DIGESTS], env={**home, **env}, cwd="/", capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())  # type: ignore[misc]


def test_no_page_shows_a_path_of_this_machine() -> None:
    for page in pages():
        for path in (str(ROOT), str(Path.home() / ".local"), sys.prefix, shutil.which("git") or "/usr/bin/git"):
            assert path not in page.text, f"{page.name} shows {path}"
