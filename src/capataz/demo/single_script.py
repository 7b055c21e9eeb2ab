# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for the program ``single`` on the sample repository: one worker does all, two reviewers pass it."""

LOST = "    return len(items) // size\n"
RIGHT = "    return max(1, -(-len(items) // size))\n"
LINKS = '''"""Links from a page to its neighbours."""

from pages.slicing import page_count


def links(items, number, size):
    """{"previous": number or None, "next": number or None} of an existing page."""
    last = page_count(items, size)
    return {"previous": number - 1 if number > 1 else None, "next": number + 1 if number < last else None}
'''
LINKS_TEST = '''import unittest

from pages.links import links


class Links(unittest.TestCase):
    def test_last_page(self):
        self.assertEqual(links(range(10), 3, 4), {"previous": 2, "next": None})
'''


def respond(call):
    name = call.agent.rpartition("/")[2]
    role = name.partition(":")[2] or name
    return {"main": work, "reducer": reduce}.get(role, review)(call)


def work(call):
    steps = [
        tool("edit_file", path="pages/slicing.py", old=LOST, new=RIGHT),
        [tool("write_file", path="pages/links.py", content=LINKS), tool("write_file", path="tests/test_links.py", content=LINKS_TEST)],
        tool("run_command", command="python3 -m unittest discover -s tests -t ."),
        submit(status="completed", summary="page_count rounds up; links() gives the neighbours", unresolved_risks=[]),
    ]
    return steps[min(call.turn, len(steps) - 1)]


def bound(call):
    return {
        "candidate_id": call.data["candidate"]["id"],
        "candidate_sha": call.data["candidate"]["sha"],
        "test_report_digest": call.data["test_report"]["digest"],
        "evidence_digest": call.data["evidence"]["digest"],
    }


def reduce(call):
    evidence = [f"suite unit passed: {criterion}" for criterion in call.data["success_criteria"]]
    return submit(**bound(call), summary="a short last page counts; links() is there", acceptance_evidence=evidence, unresolved_risks=[])


def review(call):
    return submit(**bound(call), candidate_passed=True, blocking_issues=[], evidence=["read the diff", "suite unit passed"])
