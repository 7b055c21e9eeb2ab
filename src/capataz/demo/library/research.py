# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for research on the sample repository; one of its claims names a line that is not there."""


def respond(call):
    name = call.agent.rpartition("/")[2]
    return {"planner": plan, "reader:code": code, "reader:tests": tests, "writer": write}[name](call)


def plan(call):
    if call.turn == 0:
        return tool("list_directory", path=".", depth=2)
    return submit(areas=[{"id": "code", "question": "What does pages/ do?"}, {"id": "tests", "question": "What does tests/ cover?"}])


def code(call):
    if call.turn == 0:
        return tool("read_file", path="pages/slicing.py")
    claims = [
        {"statement": "pages/slicing.py holds the arithmetic", "references": [{"path": "pages/slicing.py", "line": 1, "end_line": 2}]},
        {"statement": "a cache makes it fast", "references": [{"path": "pages/slicing.py", "line": 4000}]},
    ]
    return submit(claims=claims, open_questions=["Is a size of 0 meant to raise?"])


def tests(call):
    if call.turn == 0:
        return tool("search_code", pattern="def test_", path="tests")
    claim = {"statement": "the tests are unittest cases", "references": [{"path": "tests/test_slicing.py", "line": 1}]}
    return submit(claims=[claim], open_questions=[])


def write(call):
    places = [cited["reference"]["path"] for finding in call.data["findings"] for cited in finding["evidence"]]
    return submit(summary="Two places answer it: " + ", ".join(sorted(set(places))), open_questions=[])
