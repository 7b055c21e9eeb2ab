"""Carrying a run on whose program's file is no longer what it was."""

from __future__ import annotations

from pathlib import Path

from main_job import Cli

PROGRAM = '''
from capataz import ask, program

@program
async def note() -> str:
    answer = await ask("Go on?")
    return f"{answer.value} SAID"
'''


def test_a_resume_says_when_the_file_has_changed(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "note.py"
    file.write_text(PROGRAM)
    parked = cli.run("run", f"{file}:note", "--json")
    run_id = parked.json["run_id"]
    assert "is not what this run began with" not in cli.run("resume", run_id).err
    file.write_text(PROGRAM.replace("SAID", "told"))
    told = cli.run("resume", run_id)
    assert f"{file} is not what this run began with; it goes on with that." in told.err
    assert f"capataz resume {run_id} --with {file}" in told.err
    file.unlink()
    ask = cli.json("asks", "--run", run_id)["asks"][0]["ask_id"]
    assert cli.run("answer", ask, "approve", "--json").json["result"] == "approve SAID"
