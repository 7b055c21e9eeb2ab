"""A scripted model for crash tests: as ``two_workers``, and every command leaves a line in a file of the workspace.

The final tree therefore tells how often each command took effect. ``COMMANDS`` is what the files must hold in the end.
"""

WRONG = "def mul(a, b):\n    return a + b\n"
RIGHT = "def mul(a, b):\n    return a * b\n"
CHECK = (
    "import unittest\nimport calc\nimport mul\n\n\nclass T(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n\n"
    "    def test_mul(self):\n        self.assertEqual(mul.mul(3, 4), 12)\n"
)
COMMANDS = {"mul.ran": "round-0 a\nround-0 b\nround-0 c\nround-1 a\nround-1 b\nround-1 c\n", "check.ran": "round-0 a\nround-0 b\nround-0 c\n"}


def respond(call):
    round_, _, name = call.agent.rpartition("/")
    if name == "planner":
        return plan(call.data)
    if name.startswith("worker:"):
        return work(call.turn, round_, name.removeprefix("worker:"))
    return review(call.data, name)


def plan(data):
    criteria = data["immutable_success_criteria"]
    tasks = [task("mul", ["mul.py", "mul.ran"])]
    if data.get("test_report") is None:
        tasks.append(task("check", ["selfcheck.py", "check.ran"]))
    return submit(substantive=len(tasks) > 1, reason="plan", success_criteria=criteria, tasks=tasks)


def task(id, globs):
    return {"id": id, "objective": f"Do {id}", "read_only": False, "write_globs": globs, "additional_suite_ids": []}


def work(turn, round_, name):
    if turn == 0:
        return [ran(name, round_, "a"), tool("read_file", path="calc.py"), ran(name, round_, "b")]
    if turn == 1:
        if name == "check":
            return tool("write_file", path="selfcheck.py", content=CHECK)
        return tool("write_file", path="mul.py", content=WRONG if round_ == "round-0" else RIGHT)
    if turn == 2:
        return ran(name, round_, "c")
    return submit(status="completed", summary="done", unresolved_risks=[])


def ran(name, round_, letter):
    return tool("run_command", command=f"echo {round_} {letter} >> {name}.ran")


def review(data, name):
    bound = {
        "candidate_id": data["candidate"]["id"],
        "candidate_sha": data["candidate"]["sha"],
        "test_report_digest": data["test_report"]["digest"],
        "evidence_digest": data["evidence"]["digest"],
    }
    if name == "reducer":
        return submit(**bound, summary="adds mul", acceptance_evidence=["suite unit"], unresolved_risks=[])
    passed = data["test_report"]["passed"]
    issues = [] if passed else ["the suite fails"]
    return submit(**bound, candidate_passed=passed, blocking_issues=issues, evidence=["suite unit"])
