"""``run_command`` and ``search_code`` over a real process."""

# ruff: noqa: ASYNC240, PTH110
# Paths are bytes here.
from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agents_kit import ports_on
from test_agents_files import put

from capataz.agents.tools import search
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.catalogue import catalogue
from capataz.agents.tools.errors import ToolError
from capataz.agents.tools.paths import WriteScope
from capataz.contracts.harness import ToolReply
from capataz.testing.fake_ports import FakePorts


async def use(ports: FakePorts, name: str, longest_s: float = 60, **arguments: Any) -> ToolReply:
    return await catalogue()[name].call(Bench(ports, WriteScope(None, ()), "a", longest_s), arguments)


async def test_exit_codes_and_streams(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    reply = await use(ports, "run_command", command="echo out; echo err >&2; exit 7")
    assert reply.content == "exit code 7\nstdout:\nout\nstderr:\nerr" and reply.failed
    assert (await use(ports, "run_command", command="true")).content == "exit code 0\n(no output)"
    assert not (await use(ports, "run_command", command="[[ a == a ]]")).failed
    assert (await use(ports, "run_command", command="no_such_program_here")).content.startswith("exit code 127")
    assert "more" not in (await use(ports, "run_command", command="printf 'a\\0b'")).content


async def test_folder_and_time(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    (tmp_path / "w/sub").mkdir()
    assert "/sub" in (await use(ports, "run_command", command="pwd", cwd="sub")).content
    with pytest.raises(ToolError):
        await use(ports, "run_command", command="pwd", cwd="../x")
    with pytest.raises(ToolError):
        await use(ports, "run_command", command=" ")
    with pytest.raises(ToolError):
        await use(ports, "run_command", command="true", timeout_s=0)
    reply = await use(ports, "run_command", longest_s=0.2, command="sleep 30", timeout_s=3_000)
    assert reply.failed and "longer than 0.2 s" in reply.content and reply.refused is None


async def test_long_output_keeps_head_and_tail_and_stores_all(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    reply = await use(ports, "run_command", command="echo first; yes | head -c 100000; echo last")
    assert "first" in reply.content and "last" in reply.content and len(reply.content) < 18_000
    (uri,) = reply.artifacts
    assert ports.stored[uri].endswith(b"last\n") and len(ports.stored[uri]) == 100_011 and uri in reply.content
    assert not list(tmp_path.glob("spool*"))
    assert [e[0] for e in ports.events] == ["command.output"] and len(ports.events[0][1]["text"]) <= 4096


def repository(root: Path) -> None:
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / ".gitignore").write_text("ignored/\n*.log\n")
    (root / "ignored").mkdir()
    (root / "src").mkdir()
    for name in ("a.py", "src/b.py", "src/c.txt", "ignored/d.py", "e.log"):
        (root / name).write_text("first\nneedle here\n")
    put(root, b"latin-\xe9.txt", b"needle caf\xe9\r\n")
    put(root, b"bin", b"needle\0\n")
    (root / "link").symlink_to("/etc/passwd")


async def test_search(tmp_path: Path) -> None:
    repository(tmp_path / "w")
    ports = ports_on(tmp_path / "w")
    assert (await use(ports, "search_code", pattern=r"need\w+")).content.split("\n") == [
        "a.py:2: needle here", '"latin-\\351.txt":1: needle caf\ufffd', "src/b.py:2: needle here", "src/c.txt:2: needle here",
    ]
    assert (await use(ports, "search_code", pattern="needle", glob="*.py")).content.split("\n") == ["a.py:2: needle here", "src/b.py:2: needle here"]
    assert (await use(ports, "search_code", pattern="needle", glob="src/**/*.txt")).content == "src/c.txt:2: needle here"
    assert (await use(ports, "search_code", pattern="needle", path="src", limit=1)).content == "src/b.py:2: needle here\n[only the first 1 matches; narrow the pattern, path or glob]"
    assert (await use(ports, "search_code", pattern="needle", path="a.py")).content == "a.py:2: needle here"
    assert (await use(ports, "search_code", pattern="absent")).content.startswith("no match in ")


async def test_search_without_git(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "node_modules").mkdir(parents=True)
    (root / "node_modules/x.js").write_text("needle\n")
    (root / "a.js").write_text("needle\n")
    env = {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    assert env and (await use(ports_on(root), "search_code", pattern="needle")).content == "a.js:1: needle"


@pytest.mark.parametrize("arguments", [{"pattern": "("}, {"pattern": ""}, {"pattern": "x", "path": "nowhere"}, {"pattern": "x", "path": "/etc"}, {"pattern": "x", "limit": 0}, {"pattern": "a{99999999999}"}])
async def test_search_mistakes(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError):
        await use(ports_on(tmp_path / "w"), "search_code", **arguments)


async def test_a_hostile_pattern_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TIMEOUT_S", 0.5)
    ports = ports_on(tmp_path / "w")
    (tmp_path / "w/a").write_text("a" * 200 + "\n")
    with pytest.raises(ToolError, match="took over"):
        await use(ports, "search_code", pattern="(a+)+$b")
    assert os.path.exists(tmp_path / "w/a")
