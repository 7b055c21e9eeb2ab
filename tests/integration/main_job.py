"""The main job from outside: repositories, the command line, and what must be true afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "cases" / "two_workers.py"
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(repo: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=repo, env=GIT_ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def small_repository(folder: Path) -> Path:
    """A Python project with one passing suite, one commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "selfcheck.py").write_text(
        "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
    )
    (folder / "capataz.toml").write_text('[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\nrequired = true\n')
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder


@dataclass(frozen=True)
class Cli:
    """``capataz`` with a home of its own."""

    home: Path
    script_log: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CAPATAZ_")}
        return {**kept, "CAPATAZ_HOME": str(self.home), "CAPATAZ_SCRIPT_LOG": str(self.script_log), **more}

    def start(self, *args: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "capataz.cli.main", *args],
            cwd=cwd, env=self.environment(**env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def run(self, *args: str, cwd: Path | None = None, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, cwd=cwd, **env)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def json(self, *args: str, cwd: Path | None = None, **env: str) -> dict[str, Any]:
        done = self.run(*args, "--json", cwd=cwd, **env)
        assert done.stdout.strip(), done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    def runs(self) -> list[dict[str, Any]]:
        return self.json("ps")["runs"]


def log_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def repeated_calls(file: Path, run_id: str) -> int:
    """Model calls that the script answered more than once."""
    counts = Counter((line["agent"], line["turn"], line["digest"]) for line in log_lines(file) if line["run"] == run_id)
    return sum(count - 1 for count in counts.values())


def leftovers(home: Path, run_id: str) -> list[str]:
    """Processes that know this home (the database server apart), mounts, and workspace folders."""
    found = [f"workspace {p}" for p in (home / "runs").glob("*/ws/*")]
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line]
    deadline = time.monotonic() + 5
    while (processes := _processes(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found + processes


def _processes(home: Path) -> list[str]:
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            environment = (folder / "environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        database = "postgres" in command or "capataz.store" in command
        if (str(home) in command or f"CAPATAZ_HOME={home}" in environment) and not database:
            found.append(f"process {folder.name} {command[:120]}")
    return found
