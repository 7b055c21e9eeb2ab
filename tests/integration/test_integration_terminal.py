"""The main job at a terminal: the question is put there, and the answer or a Ctrl-C is taken from there."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from main_job import PATIENCE_S, SCRIPT, Cli, Source, git, leftovers, small_repository

CONTROLLING = "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


class Terminal:
    """``capataz`` with a terminal of its own, as a person has it: keys go to the foreground process group."""

    def __init__(self, cli: Cli, *args: str) -> None:
        ours, theirs = pty.openpty()
        self._fd, self.seen = ours, ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLING, "-m", "capataz.cli.main", *args],
            env=cli.environment(TERM="xterm"), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )
        os.close(theirs)

    def until(self, text: str) -> None:
        """Reads until ``text`` is on the screen."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-3000:]
            assert self._read(), f"ended without {text!r}: {self.seen[-3000:]}"

    def _read(self) -> bool:
        if not select.select([self._fd], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False                       # the other end is closed
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        while self._read():
            if self.process.poll() is not None and not select.select([self._fd], [], [], 0)[0]:
                break
        os.close(self._fd)
        return self.process.wait(60)


def run_of(cli: Cli) -> str:
    return cli.runs()[0]["run_id"]


def test_a_person_sees_the_evidence_and_approves(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    terminal = Terminal(cli, "do", "Add mul", "--repo", str(repo), "--model", f"scripted:{SCRIPT}")
    terminal.until("Promote candidate")
    terminal.until("> ")
    for shown in ("mul.py", "selfcheck.py", "unit", "verifier", "refuter"):
        assert shown in terminal.seen
    terminal.press("maybe\n")
    terminal.press("approve\n")
    terminal.until("promoted")
    assert terminal.end() == 0, terminal.seen[-2000:]
    shown = cli.json("show", run_of(cli))
    assert shown["outcome"] == "promoted" and shown["approval"]["channel"] == "terminal"
    assert git(repo, "rev-parse", "main") == shown["candidate"]["sha"]
    assert leftovers(home) == []


def test_ctrl_c_at_the_question_leaves_it_open(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    terminal = Terminal(cli, "do", "Add mul", "--repo", str(repo), "--model", f"scripted:{SCRIPT}")
    terminal.until("Promote candidate")
    terminal.until("> ")
    terminal.press("\x03")
    terminal.until("capataz resume")
    assert terminal.end() == 130, terminal.seen[-2000:]
    run_id = run_of(cli)
    assert cli.json("show", run_id)["state"] == "parked"
    assert leftovers(home) == [] and Source.of(repo) == before
    (ask,) = cli.json("asks", "--run", run_id)["asks"]
    done = cli.run("answer", ask["ask_id"], "approve", "--json")
    assert done.code == 0 and done.json["outcome"] == "promoted", done


def test_ctrl_c_while_agents_work(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    terminal = Terminal(cli, "do", "Add mul", "--repo", str(repo), "--model", f"scripted:{SCRIPT}", "--yes")
    terminal.until("worker:mul")
    terminal.press("\x03")
    terminal.until("capataz resume")
    assert terminal.end() == 130, terminal.seen[-2000:]
    run_id = run_of(cli)
    assert leftovers(home) == []
    done = cli.run("resume", run_id, "--json")
    assert done.code == 0 and done.json["outcome"] == "promoted", done
