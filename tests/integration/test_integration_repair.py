"""What one round got wrong, the next one mends; and what a planner cannot change."""

from __future__ import annotations

from pathlib import Path

from main_job import Cli, git, log_lines, script, small_repository

# In round 0, worker:mul does something else; afterwards everybody is honest.
FIRST_ROUND = """
def work(call, name):
    if name != "worker:mul" or not call.agent.startswith("round-0/"):
        return base.work(call, name) if call.agent.startswith("round-0/") or name != "worker:mul" else mended(call)
    return bad(call)

def mended(call):
    if call.turn == 0:
        return tool("write_file", path="mul.py", content=RIGHT)
    return submit(status="completed", summary="done", unresolved_risks=[])
"""
FOLDERS = """
def plan(data):
    criteria = data["immutable_success_criteria"]
    if any(f["code"] == "candidate_conflict" for f in data.get("failures", [])):
        assert data["candidate"] is None and data["test_report"] is None
        return submit(substantive=True, reason="repair", success_criteria=criteria,
                      tasks=[task("mul", ["mul.py"]), task("check", ["selfcheck.py"])])
    return submit(substantive=True, reason="both", success_criteria=criteria,
                  tasks=[task("mul", ["mul.py"]), task("check", ["selfcheck.py", "mul.py/**"])])

def bad(call):
    if call.turn == 0:
        return tool("write_file", path="mul.py", content=RIGHT)
    return submit(status="completed", summary="done", unresolved_risks=[])
""" + FIRST_ROUND + """
honest_work = work

def work(call, name):
    if name == "worker:check" and call.agent.startswith("round-0/") and call.turn == 0:
        return tool("write_file", path="mul.py/x.py", content="")
    return honest_work(call, name)
"""
SCOPE = """
def bad(call):
    if call.turn == 0:
        return tool("run_command", command="echo x >> calc.py")
    return submit(status="completed", summary="done", unresolved_risks=[])
""" + FIRST_ROUND
WEAK = """
def plan(data):
    assert data["immutable_success_criteria"] == ["mul(3, 4) is 12", "add still works"], data
    assert data["required_suite_ids"] == ["unit"], data
    tasks = [task("mul", ["mul.py"])] if data.get("test_report") else [task("mul", ["mul.py"]), task("check", ["selfcheck.py"])]
    return submit(substantive=len(tasks) > 1, reason="easy", success_criteria=["anything goes"], tasks=tasks)

def work(call, name):
    assert call.data["success_criteria"] == ["mul(3, 4) is 12", "add still works"], call.data
    return base.work(call, name)

def review(data, name):
    assert data["success_criteria"] == ["mul(3, 4) is 12", "add still works"], data
    return base.review(data, name)
"""


def test_a_file_against_a_folder_is_a_conflict_and_goes_to_repair(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes", script=script(tmp_path, FOLDERS))
    assert done.code == 0, done
    first, second = done.json["rounds"]
    assert [f["code"] for f in first["failures"]] == ["candidate_conflict"]
    assert "mul.py" in first["failures"][0]["message"]
    assert (first["candidate"], first["suites"], first["passed"]) == (None, [], False)
    assert second["passed"] and done.json["outcome"] == "promoted"
    assert git(repo, "show", "main:mul.py") == "def mul(a, b):\n    return a * b"


def test_a_write_outside_the_scope_costs_the_round_and_is_mended(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes", script=script(tmp_path, SCOPE))
    assert done.code == 0, done
    first, _ = done.json["rounds"]
    assert [(f["task"], f["code"]) for f in first["failures"]] == [("mul", "scope_violation")]
    assert {w["task_id"]: w["status"] for w in first["workers"]} == {"mul": "refused", "check": "completed"}
    assert done.json["outcome"] == "promoted"
    assert done.json["candidate"]["changed_files"] == ["mul.py", "selfcheck.py"]


def test_a_planner_cannot_weaken_criteria(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    criteria = ("--criterion", "mul(3, 4) is 12", "--criterion", "add still works")
    done = cli.do(repo, "--yes", *criteria, script=script(tmp_path, WEAK))
    assert done.code == 0, done
    assert done.json["outcome"] == "promoted" and len(done.json["rounds"]) == 2
    assert done.json["rounds"][0]["plan"]["success_criteria"] == ["mul(3, 4) is 12", "add still works"]
    events = cli.run("events", str(done.run_id), "--json").out
    assert "the planner left out or changed the criterion: add still works" in events


def test_the_worker_is_told_what_failed(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    told = """
def work(call, name):
    feedback = call.data["feedback"]
    if call.agent.startswith("round-0/"):
        assert feedback is None
    else:
        assert feedback["failed_suites"][0]["id"] == "unit", feedback
        assert "test_mul" in feedback["test_log"], feedback
        assert feedback["blocking_issues"] == ["the suite fails", "the suite fails"]
    return base.work(call, name)
"""
    done = cli.do(repo, "--yes", script=script(tmp_path, told))
    assert done.code == 0, done
    assert len(done.json["rounds"]) == 2
    assert len(log_lines(cli.script_log)) == done.json["usage"]["model_calls"] == 17
