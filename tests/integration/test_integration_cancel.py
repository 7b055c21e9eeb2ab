"""Cancel of a tree of programs and agents, all of them in the middle of a command in a sandbox of their own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from main_job import PATIENCE_S, Cli, finish, leftovers, small_repository

PROGRAM = """
from pydantic import BaseModel

from capataz import coding, fan_out, program, run, scope
from capataz.contracts.coding import CodingJob
from capataz.contracts.records import WorkItem


class Team(BaseModel):
    job: CodingJob
    number: int


@program
async def team(input: Team) -> int:
    job, number = input.job, input.number

    async def member(n: int) -> str:
        item = WorkItem(id=f"t{number}-{n}", objective="wait", read_only=False, write_globs=[f"{number}-{n}.txt"])
        workspace = await coding.workspace(job, item, base_sha=job.request.base_sha, round=0)
        return (await run(f"member-{n}", prompt="wait", workspace=workspace)).text

    return len(await fan_out(range(TEAM), member))


@program
async def company(repository: str) -> int:
    job = await coding.job(repository, "Wait", base=None)

    async def lead(number: int) -> int:
        async with scope(f"team-{number}"):
            return await run(team, input=Team(job=job, number=number))

    return sum(await fan_out(range(TEAMS), lead))
"""
SCRIPT = """
def respond(call):
    return tool("run_command", command="setsid sleep 98764321 & sleep 98764321")
"""


def sleepers() -> int:
    """Commands under way, on the whole host: a sandbox's processes are seen from outside."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += file.read_bytes() == b"sleep\x0098764321\x00"
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("teams", "team"), [(2, 3), pytest.param(10, 10, marks=pytest.mark.sweep)])
def test_cancel_ends_every_process_of_a_tree(cli: Cli, home: Path, tmp_path: Path, teams: int, team: int) -> None:
    (tmp_path / "company.py").write_text(PROGRAM.replace("TEAMS", str(teams)).replace("TEAM", str(team)))
    (tmp_path / "wait.py").write_text(SCRIPT)
    repo = small_repository(tmp_path / "repo")
    process = cli.start(
        "run", f"{tmp_path / 'company.py'}:company", "--input", f'"{repo}"', "--model", f"scripted:{tmp_path / 'wait.py'}", "--json"
    )
    deadline = time.monotonic() + PATIENCE_S
    while sleepers() < 2 * teams * team:
        assert process.poll() is None and time.monotonic() < deadline, (sleepers(), finish(process, 1))
        time.sleep(0.02)
    run_id = cli.runs()[0]["run_id"]
    cancelled = cli.start("cancel", run_id, "--json")
    asked = time.monotonic()
    while sleepers():
        assert time.monotonic() - asked < PATIENCE_S
        time.sleep(0.01)
    print(f"{teams * team} agents: every process gone {time.monotonic() - asked:.2f} s after the command was typed")
    assert finish(cancelled).json["state"] == "cancelled"
    assert finish(process).code == 130
    assert leftovers(home) == []
