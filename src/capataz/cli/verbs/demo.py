"""demo: a whole job on a small sample repository, with a scripted model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from capataz.cli import bridge, options
from capataz.cli.app_port import App
from capataz.cli.foreground import carry_on
from capataz.cli.output import clean, stderr_line
from capataz.cli.person import can_ask
from capataz.cli.verbs.common import Json, examples
from capataz.contracts.errors import UsageError
from capataz.contracts.jobs import DoRequest

REQUEST = "The last page is lost when it is not full, and nothing links a page to its neighbours. Mend the first and add links()."
CRITERIA = (
    "a short last page is counted and returned; a list that fits exactly has no empty page; an empty list has one",
    "links(items, number, size) gives the numbers of the previous and the next page, or None at the ends",
    "new behaviour has tests and every test passes",
)
_IDENTITY = {
    "GIT_AUTHOR_NAME": "Capataz Demo",
    "GIT_AUTHOR_EMAIL": "demo@capataz.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Capataz Demo",
    "GIT_COMMITTER_EMAIL": "demo@capataz.invalid",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


def add(app: typer.Typer) -> None:
    app.command(epilog=examples("capataz demo", "capataz demo --dir ./pages --yes"))(demo)


def demo(
    dir: Annotated[str | None, typer.Option("--dir", metavar="DIR", help="A new or empty folder for the sample; a temporary one by default.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Promote without asking; the default where there is no terminal.")] = False,
    json: Json = False,
) -> int:
    """Watch a whole job on a small sample repository: two workers, a failing suite, its repair, reviews, approval, promotion.

    The model is scripted: its answers are in a file of Capataz, no provider is called and nothing is paid. Everything else is real.
    """
    repository = _folder(dir)
    with as_file(files("capataz.demo")) as source:
        _make_repository(source / "sample", repository)
        stderr_line(f"sample repository: {repository}\nrequest: {REQUEST}\nThe model of this demo is SCRIPTED; sandboxes, git, tests and the gate are real.\n")
        request = DoRequest(
            request=REQUEST,
            repository=repository,
            criteria=CRITERIA,
            model=f"{options.SCRIPTED}{source / 'script.py'}",
            approval="ask" if can_ask() and not yes else "yes",
        )
        code = bridge.with_app(lambda app: _job(app, request, json))
    if code == 0:
        _tell(repository)
    return code


async def _job(app: App, request: DoRequest, as_json: bool) -> int:
    run_id = await app.start_do(request)
    stderr_line(f"run {run_id}")
    return await carry_on(app, run_id, as_json=as_json)


def _folder(name: str | None) -> Path:
    if name is None:
        return Path(tempfile.mkdtemp(prefix="capataz-demo-"))
    path = Path(options.text(name, "--dir")).expanduser().absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"--dir {name!r} is not an empty folder")
    return path


def _make_repository(sample: Path, repository: Path) -> None:
    shutil.copytree(sample, repository, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    _git(repository, "init", "-q", "-b", "main")
    _git(repository, "add", "-A")
    _git(repository, "commit", "-q", "-m", "A library that cuts lists into pages")


def _git(repository: Path, *args: str) -> str:
    """git with a fixed identity and none of the user's configuration."""
    git = shutil.which("git")
    if git is None:
        raise UsageError("git is not installed; Capataz needs git 2.38 or newer")
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, **_IDENTITY}
    done = subprocess.run([git, "-C", str(repository), *args], env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise UsageError(f"git {args[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _tell(repository: Path) -> None:
    log = _git(repository, "log", "--oneline", "--stat", "-2")
    stderr_line(f"\nThe result is in {repository}; its log:\n{clean(log, lines=True)}")
    stderr_line("That was a scripted model. With a real one (needs the extra, e.g. `pip install 'capataz[openai]'`, and a key):")
    stderr_line('  export OPENAI_API_KEY=...\n  capataz do "Your request" --repo YOUR/REPOSITORY --model openai/gpt-5-mini')
    if not sys.stderr.isatty():
        return
    stderr_line(f"Look around: cd {repository}; git show; capataz ps; capataz show RUN; capataz tree RUN")
