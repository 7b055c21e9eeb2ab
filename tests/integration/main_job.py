"""The main job from outside: repositories, the command line, and what must be true afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "cases"
SCRIPT = CASES / "two_workers.py"
PATIENCE_S = 300.0  # for one command on a machine that is busy with other things
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}
POLICY = '[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\nrequired = true\n'


def git(repo: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *args], cwd=repo, env=GIT_ENV, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write_project(folder: Path) -> None:
    """The files of a Python project with one passing suite."""
    (folder / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "selfcheck.py").write_text(
        "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
    )
    (folder / "capataz.toml").write_text(POLICY)


def small_repository(folder: Path, **files: str) -> Path:
    """A Python project with one passing suite, one commit. ``files``: more of them."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    write_project(folder)
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder


@dataclass(frozen=True)
class Outcome:
    """How one command of the line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        lines = self.out.splitlines()
        assert len(lines) == 1, (self.code, self.out, self.err)
        return json.loads(lines[0])

    @property
    def run_id(self) -> str | None:
        """The run that ``do`` and ``run`` name first of all."""
        first = self.err.partition("\n")[0].split()
        return first[1] if len(first) == 2 and first[0] == "run" else None


@dataclass(frozen=True)
class Cli:
    """``capataz`` with a home. ``prefix``: put before each command, as to be another user."""

    home: Path
    script_log: Path
    prefix: tuple[str, ...] = ()

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CAPATAZ_")}
        return {**kept, "CAPATAZ_HOME": str(self.home), "CAPATAZ_SCRIPT_LOG": str(self.script_log), **more}

    def start(self, *args: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "capataz.cli.main", *args],
            cwd=cwd, env=self.environment(**env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )

    def run(self, *args: str, cwd: Path | None = None, timeout: float = PATIENCE_S, **env: str) -> Outcome:
        return finish(self.start(*args, cwd=cwd, **env), timeout)

    def do(self, repo: Path, *args: str, script: Path = SCRIPT, **env: str) -> Outcome:
        """``do --json`` on ``repo`` with a scripted model."""
        return self.run(*do_args(repo, script), *args, **env)

    def json(self, *args: str) -> dict[str, Any]:
        done = self.run(*args, "--json")
        assert done.code == 0, (args, done)
        return done.json

    def runs(self) -> list[dict[str, Any]]:
        return self.json("ps")["runs"]


def do_args(repo: Path, script: Path = SCRIPT) -> tuple[str, ...]:
    return ("do", "Add mul", "--repo", str(repo), "--model", f"scripted:{script}", "--json")


def finish(process: subprocess.Popen[str], timeout: float = PATIENCE_S) -> Outcome:
    """Waits for a command. On time-out its session is killed, so that a failed test leaves nothing running."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"no end within {timeout:g} s: {process.args}\n{err[-3000:]}") from None
    return Outcome(process.returncode, out, err)


def script(folder: Path, *functions: str) -> Path:
    """A script in ``folder`` that answers as ``two_workers`` does but for some functions, given as source.

    The last definition of a name counts; it may call the honest one as ``base.NAME``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ("respond", "plan", "work", "review", "task")
    honest = ["class base:", *(f"    {name} = staticmethod({name})" for name in names)]
    file = folder / "script.py"
    file.write_text("\n".join([SCRIPT.read_text(), *honest, "", *functions, ""]))
    return file


# ---- afterwards ----------------------------------------------------------------------------------


def log_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def repeated_calls(lines: list[dict[str, Any]]) -> int:
    """Model calls that the script answered more than once."""
    counts = Counter((line["run"], line["agent"], line["turn"], line["digest"]) for line in lines)
    return sum(count - 1 for count in counts.values())


def agent_nodes(tree: list[dict[str, Any]], scope: str = "") -> dict[str, dict[str, Any]]:
    """The agents of ``tree --json`` by their scoped names."""
    found: dict[str, dict[str, Any]] = {}
    for node in tree:
        if node["kind"] == "scope":
            found |= agent_nodes(node["children"], f"{scope}{node['name']}/")
        elif node["kind"] == "agent":
            found[scope + node["name"]] = node
    return found


def completed_calls(cli: Cli, run_id: str) -> set[tuple[str, int]]:
    """(agent, turn) of the model calls that the journal holds as completed."""
    nodes = agent_nodes(cli.json("tree", run_id)["tree"])
    return {
        (name, int(call["name"].removeprefix("t")))
        for name, node in nodes.items() for call in node["children"] if call["kind"] == "model" and call["status"] == "ok"
    }


def leftovers(home: Path, wait_s: float = 15.0) -> list[str]:
    """Processes that know this home (the database server apart), mounts, and workspace folders."""
    found = [f"workspace {p}" for p in (home / "runs").glob("*/ws")]
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line]
    deadline = time.monotonic() + wait_s
    while (left := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found + [f"process {pid} {command}" for pid, command in left.items()]


def processes(home: Path) -> dict[int, str]:
    """The living processes whose command or environment names this home, without the database's."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
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


@dataclass(frozen=True)
class Source:
    """All of a source repository that a job must not touch."""

    refs: str
    index: bytes
    config: bytes
    head: str
    files: dict[str, str]

    @classmethod
    def of(cls, repo: Path) -> Source:
        folder = repo if (repo / "HEAD").exists() else repo / ".git"
        index = folder / "index"
        return cls(
            refs=git(repo, "for-each-ref"),
            index=index.read_bytes() if index.exists() else b"",
            config=(folder / "config").read_bytes(),
            head=(folder / "HEAD").read_text(),
            files=listing(repo, skip=(".git",)) | {f".git/hooks/{k}": v for k, v in listing(folder / "hooks").items()},
        )

    def but(self, **changes: Any) -> Source:
        return replace(self, **changes)


def listing(folder: Path, skip: tuple[str, ...] = ()) -> dict[str, str]:
    """Every path below with its mode and the digest of its bytes (of its target, for a link)."""
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not (Path(place) == folder and f in skip)]
        for name in [*files, *folders]:
            path = Path(place) / name
            mode = path.lstat().st_mode
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[os.fsencode(path.relative_to(folder)).hex()] = f"{mode:o} {hashlib.sha256(data).hexdigest()}"
    return found
