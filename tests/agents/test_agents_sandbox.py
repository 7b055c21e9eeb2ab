"""The tools in the real sandbox, driven by the harness."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents_kit import DONE, ListClient, calls, run, tool_results

from capataz.agents.tools.paths import parse_path
from capataz.contracts.errors import SandboxUnavailable
from capataz.contracts.sandbox import SandboxSpec, Session, WorkspaceMount
from capataz.sandbox import make_sandbox
from capataz.testing.fake_ports import FakePorts

ODD = [b"with space.txt", b'quote".txt', b"new\nline.txt", b"tab\t.txt", "café-空.txt".encode(), b"-leading-dash.txt", b"latin-\xe9.txt", b"back\\slash.txt", b"*.glob", b"$(touch pwned).txt"]


def repository(root: Path) -> Path:
    root.mkdir()
    for name in ODD:
        (root / os.fsdecode(name)).write_bytes(b"x\n")
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (root / "outside").symlink_to("/etc/hostname")
    (root / "inside").symlink_to("dos.txt")
    (root / "run.sh").write_text("#!/bin/sh\nexit 3\n")
    (root / "run.sh").chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / ".gitignore").write_text("*.log\n")
    (root / "x.log").write_text("one\n")
    return root


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    root = repository(tmp_path / "w")
    sandbox = make_sandbox("bubblewrap", runtime_dir=tmp_path / "rt")
    try:
        opened = await sandbox.start(SandboxSpec(workspace=WorkspaceMount(upper=root)))
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        yield opened
    finally:
        await opened.kill()


async def drive(session: Session, *requests: tuple[str, dict[str, object]]) -> list[str]:
    outcome = await run(ListClient(calls(*requests), DONE), FakePorts(session_=session))
    return tool_results(outcome.messages)[: len(requests)]


async def test_every_odd_name_is_listed_and_edited(session: Session, tmp_path: Path) -> None:
    listed = [line for line in (await drive(session, ("list_directory", {})))[0].split("\n") if parse_path(line) in ODD]
    assert len(listed) == len(ODD)
    results = await drive(session, *[("edit_file", {"path": name, "old": "x", "new": "y"}) for name in listed])
    assert all(r.startswith("edited") for r in results), results
    assert all((tmp_path / "w" / os.fsdecode(name)).read_bytes() == b"y\n" for name in ODD)
    assert not (tmp_path / "w/pwned").exists()


async def test_files_commands_and_search(session: Session, tmp_path: Path) -> None:
    results = await drive(
        session,
        ("edit_file", {"path": "dos.txt", "old": "two\n", "new": "TWO\n"}),
        ("read_file", {"path": "inside"}),
        ("run_command", {"command": "./run.sh; echo $?; pwd; ls /root 2>&1 | head -1"}),
        ("search_code", {"pattern": "^o(n)e$"}),
        ("write_file", {"path": "run.sh", "content": "#!/bin/sh\nexit 4\n"}),
        ("run_command", {"command": "./run.sh"}),
        ("apply_patch", {"patch": "--- a/dos.txt\n+++ b/dos.txt\n@@ -1 +1 @@\n-one\n+1\n--- /dev/null\n+++ b/n/e/w\n@@ -0,0 +1 @@\n+hi\n"}),
        ("apply_patch", {"patch": "--- a/dos.txt\n+++ b/dos.txt\n@@ -1 +1 @@\n-1\n+0\n--- /dev/null\n+++ b/dos.txt/below\n@@ -0,0 +1 @@\n+hi\n"}),
        ("read_file", {"path": "dos.txt/below"}),
        ("list_directory", {"path": "dos.txt"}),
        ("list_directory", {"path": "nowhere"}),
        ("read_file", {"path": "outside"}),
    )
    assert (tmp_path / "w/dos.txt").read_bytes() == b"1\r\nTWO\r\nthree\r\n"
    assert "CRLF" in results[1]
    assert "exit code 0\nstdout:\n3\n/workspace" in results[2]
    assert results[3] == "dos.txt:1: one"
    assert results[5].startswith("exit code 4")
    assert results[6] == "changed dos.txt, added n/e/w"
    assert all(r.startswith("error: ") for r in results[7:]), results[7:]


async def test_a_hostile_pattern_and_a_runaway_command_end(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capataz.agents.tools.search.TIMEOUT_S", 0.7)
    (tmp_path / "w/a").write_text("a" * 300 + "\n")
    results = await drive(session, ("search_code", {"pattern": "(a+)+$b"}), ("run_command", {"command": "setsid sleep 60 & sleep 60", "timeout_s": 0.5}), ("run_command", {"command": "echo alive"}))
    assert "took over" in results[0] and "longer than 0.5 s" in results[1] and "alive" in results[2]
