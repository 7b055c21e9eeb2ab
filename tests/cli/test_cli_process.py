from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_fakes import RUN

DRIVER = str(Path(__file__).parent / "cli_driver.py")


def start(*args: str, **options: object) -> subprocess.Popen[str]:
    pipes: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, DRIVER, *args], **{**pipes, **options})  # type: ignore[call-overload, no-any-return]


def until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"{text!r} did not come")


@pytest.mark.slow
def test_ctrl_c_once_drains_and_says_how_to_resume() -> None:
    process = start("wait", "do", "x", "--json")
    until(process, "driving")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert json.loads(out)["state"] == "running"
    assert "next safe point" in err and f"capataz resume {RUN}" in err and "Traceback" not in err


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once() -> None:
    process = start("stubborn", "do", "x")
    until(process, "driving")
    process.send_signal(signal.SIGINT)
    until(process, "next safe point")
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"capataz resume {RUN}" in err and "Traceback" not in err


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error() -> None:
    process = start("chatty", "events", RUN)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_terminal_without_utf8_gets_escapes() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = start("chatty", "events", RUN, env=env)
    out, err = done.communicate(timeout=20)
    assert (done.returncode, err) == (0, "")
    assert "\\xe9\\u2026" in out


@contextmanager
def terminal(*args: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, DRIVER, *args], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "xterm", **env}
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, text: bytes, timeout_s: float = 20) -> bytes:
    seen, end = b"", time.monotonic() + timeout_s
    while text not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0, end - time.monotonic()))
        assert ready, f"{text!r} did not come after {seen!r}"
        try:
            seen += os.read(descriptor, 65536)
        except OSError as error:
            raise AssertionError(f"{text!r} did not come before the end: {seen!r}") from error
    return seen


@pytest.mark.slow
def test_the_question_shows_the_diff_and_takes_a_decision() -> None:
    with terminal("ask", "do", "x") as (process, tty):
        read_until(tty, b"d shows the diff] > ")
        os.write(tty, b"d\n")
        assert b"+the diff\\x1b[31m" in read_until(tty, b"d shows the diff] > ")
        os.write(tty, b"perhaps\n")
        read_until(tty, b"d shows the diff] > ")
        os.write(tty, b"decline\n")
        read_until(tty, b"declined")
        assert process.wait(timeout=20) == 2


@pytest.mark.slow
def test_end_of_input_at_the_question_parks() -> None:
    with terminal("ask", "do", "x", NO_COLOR="1") as (process, tty):
        read_until(tty, b"d shows the diff] > ")
        os.write(tty, b"\x04")
        read_until(tty, b"capataz answer a1")
        assert process.wait(timeout=20) == 0


@pytest.mark.slow
def test_ctrl_c_at_the_question_parks() -> None:
    with terminal("ask", "do", "x") as (process, tty):
        read_until(tty, b"d shows the diff] > ")
        process.send_signal(signal.SIGINT)
        read_until(tty, b"capataz answer a1")
        assert process.wait(timeout=20) == 130


@pytest.mark.slow
def test_without_a_terminal_nobody_is_asked() -> None:
    done = start("ask", "do", "x", "--json")
    out, err = done.communicate(timeout=20)
    assert done.returncode == 0 and json.loads(out)["state"] == "parked"
    assert "capataz answer a1 approve" in err
    assert "planner started" in err


def test_version_imports_next_to_nothing() -> None:
    code = "import sys; sys.argv = ['capataz', '--version']\nfrom capataz.cli.main import main\nmain()\nprint(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"capataz {version('capataz')}"
    assert not {"typer", "rich", "pydantic", "asyncio", "importlib.metadata"} & set(eval(done.stdout.splitlines()[1]))
