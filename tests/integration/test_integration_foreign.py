"""The release coordinator three ways: each pauses at production, survives kill -9 while it waits, and goes on in another process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from main_job import Cli, Outcome

import capataz

DEPLOY = '#!/bin/sh\necho "$1 $2" >> deployed.log\n'
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIBRARY = {
    "service": "shop", "version": "1.4", "environment": "production", "deploy": "./deploy.sh production 1.4", "verify": "true", "rollback": "false",
}
SCRIPT = Path(capataz.__file__).parent / "demo" / "library" / "release.py"
WAYS: dict[str, tuple[str, ...]] = {
    "program": ("run", "release", "--input", json.dumps(LIBRARY), "--model", f"scripted:{SCRIPT}"),
    "graph": ("run", "release_graph.py", "--input", '"1.4"'),
    "agent": ("run", "release_agent.py", "--input", '"1.4"', "--model", "scripted:release_agent_model.py"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for example in EXAMPLES.glob("release_*.py"):
        shutil.copy(example, tmp_path)
    (tmp_path / "deploy.sh").write_text(DEPLOY)
    (tmp_path / "deploy.sh").chmod(0o755)
    return tmp_path


def deployed(folder: Path) -> list[str]:
    log = folder / "deployed.log"
    return log.read_text().splitlines() if log.exists() else []


def question(cli: Cli, run_id: str) -> dict[str, Any]:
    [found] = [ask for ask in cli.json("asks")["asks"] if ask["run_id"] == run_id]
    return found


def killed(done: Outcome) -> str:
    assert done.code == -9 and done.run_id, done
    return done.run_id


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("program", marks=pytest.mark.sweep), "graph", pytest.param("agent", marks=pytest.mark.sweep)])
def test_a_coordinator_waits_for_production_survives_kills_and_deploys_once(cli: Cli, folder: Path, way: str) -> None:
    staging = [] if way == "program" else ["staging 1.4"]
    run_id = killed(cli.run(*WAYS[way], "--json", cwd=folder, CAPATAZ_FAULT="ask.after"))
    assert deployed(folder) == staging
    assert cli.run("resume", run_id, "--json", CAPATAZ_FAULT="ask.after").code == -9
    assert cli.json("resume", run_id)["state"] == "parked"
    asked = question(cli, run_id)
    assert "production" in asked["question"] and asked["options"] == ["approve", "decline"]
    done = cli.run("answer", asked["ask_id"], "approve", "--json", cwd=folder.parent)
    assert (done.code, done.json["state"]) == (0, "completed"), done
    assert deployed(folder) == [*staging, "production 1.4"]


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("graph", marks=pytest.mark.sweep), "agent"])
def test_a_coordinator_that_is_declined_leaves_production_alone(cli: Cli, folder: Path, way: str) -> None:
    parked = cli.run(*WAYS[way], "--json", cwd=folder).json
    assert parked["state"] == "parked"
    done = cli.run("answer", question(cli, parked["run_id"])["ask_id"], "decline", "--json").json
    assert (done["state"], deployed(folder)) == ("completed", ["staging 1.4"])
    assert way == "graph" or "declined this call of deploy_to_production" in done["result"]


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "said"), [
    ("agent = object()", "agent= takes an Agno agent or a compiled LangGraph graph, not builtins.object"),
    ("from agno.agent import Agent\nagent = Agent(session_state={'a': 1})", "uses session_state, which would work outside the journal"),
    ("import sys\nsys.modules['langgraph'] = None\nimport langgraph", "install capataz[langgraph]"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused_in_one_line(cli: Cli, folder: Path, wrong: str, said: str) -> None:
    (folder / "wrong.py").write_text(
        f'from capataz import program, run\n{wrong}\n@program\nasync def p() -> str:\n    """P."""\n'
        '    return (await run("a", prompt="x", agent=agent)).text\n'
    )
    done = cli.run("run", "wrong.py", "--model", "scripted:release_agent_model.py", "--json", cwd=folder)
    assert done.code != 0 and said in done.out + done.err and "Traceback" not in done.err
