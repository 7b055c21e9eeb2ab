"""Commands as real processes without an interpreter's start each: forked from a parent that has imported what they need.

Each is a process of its own with its own pid, environment and output, and can be killed like any other. The parent runs
``python -m capataz.testing.warm_commands MODULE [PRELOAD ...]`` and has no threads.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = "capataz.cli.main"
PRELOAD = (
    "capataz.cli.entry", "capataz.wiring.app", "capataz.wiring.parts", "capataz.store.store", "capataz.evidence.service",
    "capataz.workspace.local_workspace", "capataz.sandbox.bubblewrap", "capataz.agents.harness", "agno.agent",
)


@dataclass(frozen=True)
class Ended:
    """``code``: negative for a signal."""

    code: int
    out: str
    err: str


class WarmCommands:
    """``env``: of the parent; what is in it identifies its children in ``/proc``. ``folder``: for their output."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err = folder / "stdout", folder / "stderr"
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "capataz.testing.warm_commands", COMMAND, *PRELOAD], env=dict(env),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.running: int | None = None

    @property
    def pid(self) -> int:
        return self._parent.pid

    def start(self, *args: str, env: Mapping[str, str]) -> int:
        """The pid of the started command."""
        assert self._parent.stdin is not None
        request = {"args": args, "env": dict(env), "out": str(self._out), "err": str(self._err)}
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        self.running = int(self._told()["pid"])
        return self.running

    def wait(self) -> Ended:
        code = int(self._told()["code"])
        self.running = None
        return Ended(code, self._out.read_text("utf-8", "replace"), self._err.read_text("utf-8", "replace"))

    def kill(self, signal: int) -> None:
        """The running command, if there is one."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                os.kill(self.running, signal)

    def close(self) -> None:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait()
        self._parent.stdout.close()

    def _told(self) -> Any:
        assert self._parent.stdout is not None
        line = self._parent.stdout.readline()
        if not line:
            raise RuntimeError(f"the parent of the commands ended with {self._parent.wait()}")
        return json.loads(line)


def _become(module: str, request: dict[str, Any]) -> None:
    """In the child: never returns."""
    code = 70
    try:
        for descriptor, place in ((1, request["out"]), (2, request["err"])):
            opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = [module, *request["args"]]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    module, *preload = sys.argv[1:]
    for name in preload:
        __import__(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(answers.fileno())
            _become(module, json.loads(line))
        _say(answers, pid=pid)
        _say(answers, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _say(stream: Any, **what: int) -> None:
    stream.write(json.dumps(what) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
