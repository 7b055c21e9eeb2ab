"""``capataz crashtest``: the crash sweep of the testing room on a program, with an input and a script for the bundled ones."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue, canonical_text
from capataz.contracts.errors import UsageError

CODING_SCRIPTS = {"ultracode": "script.py", "single": "single_script.py"}
LIBRARY_SCRIPTS = {name: f"library/{name}.py" for name in ("autoresearch", "goal_pr", "heartbeat", "ralph", "release", "research")}
LIBRARY_SCRIPTS["pr_watch"] = LIBRARY_SCRIPTS["goal_pr"]
"""Programs of the library bring an input too: ``library/NAME.json``."""
BUNDLED_SCRIPTS = {**CODING_SCRIPTS, **LIBRARY_SCRIPTS}
REQUEST = "The last page is lost when it is not full, and nothing links a page to its neighbours. Mend the first and add links()."
_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "Capataz", "GIT_AUTHOR_EMAIL": "crashtest@capataz.invalid",
    "GIT_COMMITTER_NAME": "Capataz", "GIT_COMMITTER_EMAIL": "crashtest@capataz.invalid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashtestRequest:
    """``model`` None: fake agents in memory, unless the program is a bundled one, which brings a script and a repository."""

    program: str
    input: JsonValue = None
    model: str | None = None
    max_points: int = 0                        # 0: all
    seed: int = 0


async def crashtest(request: CrashtestRequest, *, say: Callable[[str], None]) -> dict[str, Any]:
    """``{"program", "mode", "seed", "points", "crashes", "recoveries", "by_point", "violations", "seconds"}``."""
    began = time.monotonic()
    bundled = request.program in BUNDLED_SCRIPTS
    report = await _real(request, say) if bundled or request.model is not None else await _in_memory(request, say)
    mode = "processes" if bundled or request.model is not None else "memory"
    return {"program": request.program, "mode": mode, "seed": request.seed, **report, "seconds": round(time.monotonic() - began, 1)}


async def _in_memory(request: CrashtestRequest, say: Callable[[str], None]) -> dict[str, Any]:
    from capataz.testing.crash_sweep import sweep

    done = await sweep(request.program, request.input, max_points=request.max_points, seed=request.seed, say=say)
    return done.to_json()


async def _real(request: CrashtestRequest, say: Callable[[str], None]) -> dict[str, Any]:
    from capataz.testing.crash_real import Case, RealSweep

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capataz-crash-")))
        demo = stack.enter_context(as_file(files("capataz.demo")))
        if request.program in BUNDLED_SCRIPTS:
            model = request.model or f"scripted:{demo / BUNDLED_SCRIPTS[request.program]}"
            start = _library if request.program in LIBRARY_SCRIPTS else _coding
            # Results of the library hold commits, whose names depend on the run; what they are made of is compared below.
            case = Case(lambda place: start(place, demo, request.program, model), _repository_after, compare_result=False)
        else:
            case = Case(lambda _: _plain(request))
        sweep = RealSweep(case, folder, seed=request.seed, say=say)
        working = asyncio.ensure_future(asyncio.to_thread(sweep.run, request.max_points))
        try:
            return (await asyncio.shield(working)).to_json()
        finally:
            sweep.give_up()
            await asyncio.gather(working, return_exceptions=True)
            await asyncio.to_thread(sweep.stop)


def _plain(request: CrashtestRequest) -> list[str]:
    given = ["--input", canonical_text(request.input)] if request.input is not None else []
    return ["run", request.program, *given, "--model", str(request.model)]


def _coding(place: Path, demo: Path, program: str, model: str) -> list[str]:
    """A job on a fresh copy of the sample repository."""
    repository = _sample(place, demo)
    return ["do", REQUEST, "--repo", str(repository), "--model", model, "--program", program, "--yes"]


def _library(place: Path, demo: Path, program: str, model: str) -> list[str]:
    """A program of the library with its own input, on a fresh copy of the sample repository."""
    given = json.loads((demo / "library" / f"{program}.json").read_text("utf-8"))
    repository = _sample(place, demo)
    if "repository" in given:
        given["repository"] = str(repository)
    return ["run", program, "--input", canonical_text(given), "--model", model]


def _sample(place: Path, demo: Path) -> Path:
    repository = place / "sample"
    shutil.copytree(demo / "sample", repository, ignore=shutil.ignore_patterns("__pycache__"))
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "A library that cuts lists into pages")):
        _git(repository, *args)
    return repository


def _repository_after(place: Path) -> Any:
    """The trees of all branches, and that index and files are as they should be."""
    repository = place / "sample"
    trees = _git(repository, "for-each-ref", "--format=%(tree)").split()
    return [_git(repository, "rev-parse", "main^{tree}"), _git(repository, "status", "--porcelain"), sorted(trees)]


def _git(repository: Path, *args: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise UsageError("git is not installed; Capataz needs git 2.38 or newer")
    environment = {"PATH": os.environ.get("PATH", os.defpath), **_GIT}
    done = subprocess.run([git, "-C", str(repository), *args], env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise UsageError(f"git {args[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()
