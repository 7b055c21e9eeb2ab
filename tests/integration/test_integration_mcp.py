"""Tools of a real MCP server for agents: in the sandbox on standard input and output, and over HTTP on the loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from main_job import Cli, Outcome

HERE = Path(__file__).parent
SERVER = HERE / "mcp_case_server.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(HERE / "mcp_case.py", tmp_path / "use.py")
    shutil.copy(HERE / "tool_script.py", tmp_path / "script.py")
    shutil.copy(SERVER, tmp_path / "server.py")
    return tmp_path


def start(cli: Cli, folder: Path, calls: list[Any], worker: dict[str, str] | None = None, **job: Any) -> Outcome:
    given = json.dumps({"calls": json.dumps(calls), **job})
    return cli.run("run", "use.py", "--input", given, "--model", "scripted:script.py", "--json", cwd=folder, **(worker or {}))


def inside(folder: Path) -> dict[str, Any]:
    """The server as a command that the sandbox can run: its file and what is installed are shown to it."""
    packages = sysconfig.get_path("purelib")
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return {
        "command": [python, str(folder / "server.py")], "env": {"PYTHONPATH": packages}, "read_only": [packages, str(folder)],
    }  # fmt: skip


@pytest.fixture
def http(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(SERVER), str(port)], env={**os.environ, "CALLS": str(folder / "calls")}, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_a_server_in_the_sandbox_answers_and_has_no_network(cli: Cli, folder: Path) -> None:
    calls = [["add", {"a": 1, "b": 2}], ["fail", {"why": "no\nink"}], ["network", {}]]
    done = start(cli, folder, calls, tools=["add", "fail", "network"], **inside(folder))
    assert (done.code, done.json["state"]) == (0, "completed"), done.json["reason"]
    added, failed, network = json.loads(done.json["result"])
    assert (added, network) == ("3", "lo")
    assert failed.startswith("error: fail:") and "no ink" in failed


@pytest.mark.sweep
@pytest.mark.slow
def test_a_call_over_http_is_approved_and_made_once_across_kills(cli: Cli, folder: Path, http: str) -> None:
    killed = start(cli, folder, [["add", {"a": 40, "b": 2}]], {"CAPATAZ_FAULT": "ask.after"}, tools=["add"], url=http, approval="always")
    assert killed.code == -9 and killed.run_id
    assert cli.json("resume", killed.run_id)["state"] == "parked"
    [ask] = [a for a in cli.json("asks")["asks"] if a["run_id"] == killed.run_id]
    assert ask["context"]["arguments"] == {"a": 40, "b": 2}
    again = cli.run("answer", ask["ask_id"], "approve", "--json", CAPATAZ_FAULT="model.before")
    assert again.code == -9 and (folder / "calls").read_text() == "40+2\n"
    done = cli.json("resume", killed.run_id)
    assert (done["state"], json.loads(done["result"]), (folder / "calls").read_text()) == ("completed", ["42"], "40+2\n")


@pytest.mark.slow
@pytest.mark.parametrize(("job", "said"), [
    ({"tools": ["add", "steal"]}, "the MCP server notes has no tool steal"),
    ({"tools": ["add"], "token_env": "NO_SUCH_TOKEN"}, "NO_SUCH_TOKEN is not set where the worker runs"),
    ({"tools": ["add"], "url": "http://127.0.0.1:9/mcp"}, "the MCP server notes cannot be reached"),
])  # fmt: skip
def test_what_a_server_cannot_give_ends_the_agent_with_one_line(cli: Cli, folder: Path, http: str, job: dict[str, Any], said: str) -> None:
    done = start(cli, folder, [["add", {"a": 1, "b": 2}]], **{"url": http, **job})
    assert done.code == 1 and said in done.json["reason"]["message"], done
    assert "Traceback" not in done.err
