"""The crash sweep for real: processes killed by SIGKILL at named points, on a database and a home of their own.

A case runs ``capataz`` with ``CAPATAZ_FAULT``, resumes it, kills it once more in recovery and resumes it to its end. It is
compared with an undisturbed run; no model call that the journal held as completed may be made again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.faults import POINTS
from capataz.testing.crash_sweep import SweepReport, Violation, chosen
from capataz.testing.samples import sample
from capataz.testing.warm_commands import WarmCommands

PATIENCE_S = 300.0
KILLED = -9
LATE = 75                                      # the code of a command that had to be ended
ROUNDS = 20
AGAIN = ("journal.commit.before", "journal.commit.after", "model.before", "model.after", "tool.after")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])

    @property
    def run_id(self) -> str | None:
        first = self.err.partition("\n")[0].split()
        return first[1] if len(first) == 2 and first[0] == "run" else None


@dataclass(frozen=True)
class Case:
    """``args(folder)``: the command that starts the run in a fresh folder; ``after(folder)``: what the world must look like then,
    compared with the undisturbed run's."""

    args: Callable[[Path], list[str]]
    after: Callable[[Path], Any] = lambda _: None
    compare_result: bool = True


class RealSweep:
    """``folder``: an empty one for homes and repositories; the caller removes it and stops the database (``stop``)."""

    def __init__(self, case: Case, folder: Path, *, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> None:
        self._case = case
        self._folder = folder
        self._home = folder / "home"
        self._log = folder / "script.jsonl"
        self._seed = seed
        self._chance = random.Random(seed)
        self._say = say
        self._cases = 0
        self._given_up = False
        self._commands: WarmCommands | None = None
        self._expected: dict[str, Any] = {}
        self._compare_result = case.compare_result

    # ---- commands ------------------------------------------------------------------------------

    def _capataz(self, *args: str, **env: str) -> Outcome:
        if self._given_up and args[:2] != ("db", "stop"):
            raise InterruptedError("the sweep was given up")
        if self._commands is None:
            self._commands = WarmCommands(self._environment(), self._folder / "output")
        self._commands.start(*args, env=self._environment(**env))
        late = threading.Timer(PATIENCE_S, self._commands.kill, [signal.SIGKILL])
        late.start()
        ended = self._commands.wait()
        in_time = late.is_alive()
        late.cancel()
        return Outcome(ended.code if in_time else LATE, ended.out, ended.err if in_time else f"{ended.err}\nno end within {PATIENCE_S:g} s")

    def _environment(self, **env: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CAPATAZ_")}
        return {**kept, "CAPATAZ_HOME": str(self._home), "CAPATAZ_SCRIPT_LOG": str(self._log), **env}

    def give_up(self) -> None:
        """From another thread: the present command is killed, and ``run`` raises ``InterruptedError``."""
        self._given_up = True
        if self._commands is not None:
            self._commands.kill(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the database server and the parent of the commands."""
        self._capataz("db", "stop")
        if self._commands is not None:
            self._commands.close()
            self._commands = None

    # ---- the sweep -----------------------------------------------------------------------------

    def run(self, max_points: int) -> SweepReport:
        report = SweepReport()
        counts = self._reference()
        report.points = sum(counts.values())
        for place, (point, n) in enumerate(chosen(counts, max_points, self._seed)):
            again = f"{self._chance.choice(AGAIN)}:{self._chance.randint(1, 3)}"
            crashes, second, wrong = self._one(f"{point}:{n}", again)
            report.crashes += crashes
            report.recoveries += second is not None
            report.by_point[point] += crashes > 0
            report.violations += [Violation(point, n, second, what) for what in wrong]
            self._say(f"{place + 1}: {point}:{n}" + (f", then {second}" if second else "") + ("" if not wrong else f"  VIOLATION {wrong}"))
        return report

    def _reference(self) -> Counter[str]:
        """Undisturbed, twice: what comes out, whether that is the same each time, and which points are reached how often."""
        self._say("undisturbed run, for what must come out")
        trace = self._folder / "points"
        first = self._fresh(CAPATAZ_FAULT_LOG=str(trace))
        if first["state"] not in ("completed", "failed"):
            raise AssertionError(f"the undisturbed run did not end: {first}")
        self._expected = first
        if self._compare_result:
            self._compare_result = self._fresh()["result"] == first["result"]
        return Counter(line for line in trace.read_text().splitlines() if line in POINTS)

    def _fresh(self, **env: str) -> dict[str, Any]:
        folder = self._new_folder()
        done = self._capataz(*self._case.args(folder), "--json", **env)
        if done.run_id is None:
            raise AssertionError(f"the program cannot be started: {done.err.strip() or done.out.strip()}")
        return self._told(self._finish(done.run_id), folder)

    def _new_folder(self) -> Path:
        self._cases += 1
        folder = self._folder / f"case-{self._cases}"
        folder.mkdir()
        return folder

    def _told(self, shown: dict[str, Any], folder: Path) -> dict[str, Any]:
        code = (shown["reason"] or {}).get("code")
        passed = [r["passed"] for r in shown["rounds"]]
        return {"state": shown["state"], "outcome": shown["outcome"], "code": code, "rounds": passed, "result": shown["result"], "after": self._case.after(folder)}

    def _finish(self, run_id: str) -> dict[str, Any]:
        """Carries the run on to its end; every question gets its first option."""
        shown: dict[str, Any] = self._capataz("show", run_id, "--json").json
        for _ in range(ROUNDS):
            if shown["state"] in ("completed", "failed", "cancelled"):
                break
            asks = self._capataz("asks", "--run", run_id, "--json").json["asks"] if shown["state"] == "parked" else []
            if asks:
                self._capataz("answer", asks[0]["ask_id"], _first(asks[0]), "--json")
            else:
                self._capataz("resume", run_id, "--json")
            shown = self._capataz("show", run_id, "--json").json
        return shown

    def _one(self, fault: str, again: str) -> tuple[int, str | None, list[str]]:
        folder = self._new_folder()
        done = self._capataz(*self._case.args(folder), "--json", CAPATAZ_FAULT=fault)
        run_id = done.run_id
        if done.code != KILLED or run_id is None:
            return (1, None, []) if done.code == KILLED else (0, None, [])     # before anything was stored; or not reached this time
        completed, lines = self._completed(run_id), self._lines()
        second = self._capataz("resume", run_id, "--json", CAPATAZ_FAULT=again)
        repeats = self._repeats(completed, lines)
        completed, lines = self._completed(run_id), self._lines()
        self._capataz("resume", run_id, "--json")  # also of a finished run: it removes what a kill left behind
        told = self._told(self._finish(run_id), folder)
        repeats += self._repeats(completed, lines)
        killed_again = second.code == KILLED
        return 1 + killed_again, again if killed_again else None, repeats + self._differences(told) + self._left()

    def _differences(self, told: dict[str, Any]) -> list[str]:
        names = [name for name in told if name != "result" or self._compare_result]
        return [f"{name} {told[name]!r}, undisturbed {self._expected[name]!r}" for name in names if told[name] != self._expected[name]]

    # ---- repeats -------------------------------------------------------------------------------

    def _lines(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def _completed(self, run_id: str) -> set[tuple[str, int]]:
        """(agent, turn) of the model calls that the journal holds as completed."""
        shown = self._capataz("tree", run_id, "--json")
        return _model_calls(shown.json["tree"]) if shown.code == 0 else set()

    def _repeats(self, completed: set[tuple[str, int]], lines: int) -> list[str]:
        new = [json.loads(line) for line in self._log.read_text().splitlines()[lines:]] if self._log.exists() else []
        again = sorted({(line["agent"], line["turn"]) for line in new} & completed)
        return [f"made again although completed: {again}"] if again else []

    # ---- what is left --------------------------------------------------------------------------

    def _left(self) -> list[str]:
        """Workspaces, mounts, and processes that know this home, the database's apart."""
        found = [f"left behind: {place}" for place in (self._home / "runs").glob("*/ws/*")]
        mounts = Path("/proc/self/mounts")
        if mounts.exists():
            found += [f"left behind: mount {line}" for line in mounts.read_text().splitlines() if str(self._home) in line]
        deadline = time.monotonic() + 10
        known = {self._commands.pid} if self._commands is not None else set[int]()
        while (left := _processes(self._home, known)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found + [f"left behind: process {pid} {command}" for pid, command in left.items()]


def _first(ask: dict[str, Any]) -> str:
    if ask["options"]:
        return str(ask["options"][0])
    return json.dumps(sample(ask["schema"])) if ask["schema"] else "yes"


def _model_calls(tree: list[dict[str, Any]], scope: str = "", agent: str = "") -> set[tuple[str, int]]:
    """Only agents of whose name there is one: the log of the script does not tell more."""
    found: Counter[tuple[str, int]] = Counter()
    _walk(tree, scope, agent, found)
    return {call for call, count in found.items() if count == 1}


def _walk(tree: list[dict[str, Any]], scope: str, agent: str, found: Counter[tuple[str, int]]) -> None:
    for node in tree:
        if node["kind"] == "model" and (node["status"] == "ok" or node["repeated"]):
            found[(agent, int(node["name"].removeprefix("t")))] += 1
        inside = f"{scope}{node['name']}/" if node["kind"] == "scope" else scope
        _walk(node["children"], inside, scope + node["name"] if node["kind"] == "agent" else agent, found)


def _processes(home: Path, known: set[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) in {os.getpid(), *known}:
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        database = "postgres" in command or "capataz.store" in command or "capataz/store" in command
        if (str(home) in command or f"CAPATAZ_HOME={home}".encode() in environment) and not database:
            found[int(folder.name)] = command[:150]
    return found
