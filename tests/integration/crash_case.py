"""One job that is killed and carried on: what must hold then (VM.md, the promise)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from main_job import (
    CASES,
    Cli,
    Outcome,
    completed_calls,
    do_args,
    git,
    leftovers,
    log_lines,
    repeated_calls,
    small_repository,
)

SCRIPT = CASES / "crash_workers.py"
COMMANDS = {
    "mul.ran": "".join(f"round-{r} {c}\n" for r in (0, 1) for c in "abc"),
    "check.ran": "".join(f"round-0 {c}\n" for c in "abc"),
}
KILLED = -9


@dataclass
class CrashCase:
    """``cut``: ends a started ``do`` at some moment. ``recover``: carries the run on until it is over, and judges."""

    cli: Cli
    repo: Path

    @classmethod
    def new(cls, cli: Cli, folder: Path) -> CrashCase:
        return cls(cli, small_repository(folder))

    def start_args(self) -> tuple[str, ...]:
        return (*do_args(self.repo, SCRIPT), "--yes")

    def run_id_of(self, done: Outcome) -> str | None:
        """The run of an ended ``do``; None when it was killed before the run was stored."""
        if done.run_id is not None:
            return done.run_id
        known = [run["run_id"] for run in self.cli.runs() if run["state"] != "completed"]
        return known[0] if known else None

    def kill_at(self, fault: str) -> tuple[str | None, bool]:
        """The run, and whether the point was reached."""
        done = self.cli.run(*self.start_args(), CAPATAZ_FAULT=fault)
        assert done.code in (0, KILLED), done
        return self.run_id_of(done), done.code == KILLED

    def recover(self, run_id: str, **env: str) -> list[str]:
        """Resumes (``env`` may kill it again) and says what does not hold; nothing: all does."""
        before = self._facts(run_id)
        done = self.cli.run("resume", run_id, "--json", **env)
        wrong = self._repeats(before)
        if done.code == KILLED:
            return wrong + self.recover(run_id)
        return wrong + self._judge(done, before)

    def _facts(self, run_id: str) -> dict[str, Any]:
        shown = self.cli.json("show", run_id)
        return {
            "lines": len(log_lines(self.cli.script_log)), "completed": completed_calls(self.cli, run_id),
            "composed": {r["round"]: r["candidate"]["sha"] for r in shown["rounds"] if r["candidate"]},
        }

    def _repeats(self, before: dict[str, Any]) -> list[str]:
        """No model call that the journal held as completed was made again."""
        new = {(line["agent"], line["turn"]) for line in log_lines(self.cli.script_log)[before["lines"] :]}
        again = sorted(new & before["completed"])
        return [f"made again although completed: {again}"] if again else []

    def _shas(self, said: dict[str, Any], before: dict[str, Any]) -> list[str]:
        """A candidate that was composed before the kill is the candidate."""
        after = {r["round"]: r["candidate"]["sha"] for r in said["rounds"] if r["candidate"]}
        return [f"round {n}: {sha} became {after.get(n)}" for n, sha in before["composed"].items() if after.get(n) != sha]

    def _judge(self, done: Outcome, before: dict[str, Any]) -> list[str]:
        if done.code != 0:
            return [f"exit code {done.code}: {done.out[-1500:]} {done.err[-3000:]}"]
        said = done.json
        if said["outcome"] != "promoted":
            return [f"outcome {said['outcome']} {said['reason']}"]
        wrong = self._shas(said, before)
        if [r["passed"] for r in said["rounds"]] != [False, True]:
            wrong.append(f"rounds {[r['passed'] for r in said['rounds']]}")
        if git(self.repo, "rev-parse", "main") != said["candidate"]["sha"]:
            wrong.append("main is not the candidate")
        if status := git(self.repo, "status", "--porcelain"):
            wrong.append(f"status {status}")
        wrong += self._commands() + self._usage(said)
        return wrong + leftovers(self.cli.home)

    def _commands(self) -> list[str]:
        """No command of a finished tool call took effect twice."""
        found = {name: (self.repo / name).read_text() for name in COMMANDS}
        return [f"{name} holds {text!r}" for name, text in found.items() if text != COMMANDS[name]]

    def _usage(self, said: dict[str, Any]) -> list[str]:
        lines = log_lines(self.cli.script_log)
        repeated, counted = repeated_calls(lines), said["usage"]["repeated_model_calls"]
        wrong = [f"{repeated} calls were repeated, {counted} are counted"] if repeated > counted else []
        unique = len({(line["agent"], line["turn"]) for line in lines})
        if not unique <= said["usage"]["model_calls"] <= len(lines):
            wrong.append(f"{said['usage']['model_calls']} model calls are counted, {len(lines)} lines of {unique}")
        return wrong


