"""The main job from the command line: a plan, two workers, a failing suite and its repair, reviews, promotion."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.contestants.workspace import git
from bench.context import ROOT, Context
from bench.figures import Row, bounded, series

SCRIPT = ROOT / "tests" / "cases" / "two_workers.py"


def measure(context: Context) -> list[Row]:
    place = context.folder / "jobs"
    times: list[float] = []
    for number in range(context.size(3, 1)):
        times.append(_job(context, _repository(place / f"r{number}")))
    shutil.rmtree(place)
    return [bounded("job", "the main job with a scripted model: two workers, one repair", series(times, "s"), limit=6)]


def _repository(folder: Path) -> Path:
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


def _job(context: Context, repository: Path) -> float:
    url = context.url("bench_capataz")
    command = [
        sys.executable, "-m", "capataz.cli.main", "do", "Add mul(a, b)", "--repo", str(repository), "--model", f"scripted:{SCRIPT}",
        "--yes", "--json",
    ]
    started = time.perf_counter()
    done = subprocess.run(
        command, env=context.environment(CAPATAZ_DATABASE_URL=url), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    assert '"promoted"' in done.stdout, done.stdout + done.stderr
    return seconds
