"""A scripted model: two workers, a suite that fails, its repair, both reviews bound. For the repository of ``small_repository``."""

WRONG = "def mul(a, b):\n    return a + b\n"
RIGHT = "def mul(a, b):\n    return a * b\n"
CHECK = (
    "import unittest\nimport calc\nimport mul\n\n\nclass T(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n\n"
    "    def test_mul(self):\n        self.assertEqual(mul.mul(3, 4), 12)\n"
)


def respond(call):
    name = call.agent.rsplit("/", 1)[-1]
    if name == "planner":
        return plan(call.data)
    if name.startswith("worker:"):
        return work(call, name)
    return review(call.data, name)


def plan(data):
    criteria = data["immutable_success_criteria"]
    mul, check = task("mul", ["mul.py"]), task("check", ["selfcheck.py"])
    if data.get("test_report"):
        return submit(substantive=False, reason="repair", success_criteria=criteria, tasks=[mul])
    return submit(substantive=True, reason="two files", success_criteria=criteria, tasks=[mul, check])


def task(id, globs):
    return {"id": id, "objective": f"Do {id}", "read_only": False, "write_globs": globs, "additional_suite_ids": []}


def work(call, name):
    if call.turn == 0:
        return tool("run_command", command="ls; echo ran >> /tmp/ran")
    if call.turn == 1:
        if name == "worker:check":
            return tool("write_file", path="selfcheck.py", content=CHECK)
        return tool("write_file", path="mul.py", content=WRONG if call.agent.startswith("round-0/") else RIGHT)
    return submit(status="completed", summary="done", unresolved_risks=[])


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
