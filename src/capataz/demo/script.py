# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for the sample repository: it stands in for a real one, so that the demo needs no provider.

Round 0: worker `slicing` mends the lost last page but miscounts a list that fits exactly, as a hasty engineer would; worker
`links` adds links between pages. The suite catches the miscount, both reviewers reject, and round 1 mends it.
`tool` and `submit` are given by the runtime.
"""

LOST = "    return len(items) // size\n"
HASTY = "    return len(items) // size + 1\n"
RIGHT = "    return max(1, -(-len(items) // size))\n"

EMPTY_TEST = '''        with self.assertRaises(ValueError):
            page_count(range(3), 0)

    def test_empty_list_has_one_empty_page(self):
        self.assertEqual(page_count([], 4), 1)
'''

LINKS = '''"""Links from a page to its neighbours."""

from pages.slicing import page_count


def links(items, number, size):
    """{"previous": number or None, "next": number or None} of an existing page. Raises IndexError for any other."""
    last = page_count(items, size)
    if not 1 <= number <= last:
        raise IndexError(f"there is no page {number}")
    return {"previous": number - 1 if number > 1 else None, "next": number + 1 if number < last else None}
'''

LINKS_TEST = '''import unittest

from pages.links import links


class Links(unittest.TestCase):
    def test_first_page(self):
        self.assertEqual(links(range(10), 1, 4), {"previous": None, "next": 2})

    def test_last_page(self):
        self.assertEqual(links(range(10), 3, 4), {"previous": 2, "next": None})

    def test_exact_fit_ends_at_its_last_page(self):
        self.assertEqual(links(range(8), 2, 4), {"previous": 1, "next": None})

    def test_no_such_page(self):
        with self.assertRaises(IndexError):
            links(range(10), 4, 4)


if __name__ == "__main__":
    unittest.main()
'''

SUITE = "python3 -m unittest discover -s tests -t ."


def respond(call):
    place, _, name = call.agent.rpartition("/")
    role = name.partition(":")[2] or name
    return {"planner": plan, "slicing": slicing, "links": links, "reducer": reduce}.get(role, review)(call, place)


def plan(call, place):
    if call.turn == 0:
        return tool("read_file", path="pages/slicing.py")
    criteria = call.data["immutable_success_criteria"]
    if call.data.get("failures"):
        objective = "page_count must not count an empty page for a list that fits exactly, and must be 1 for an empty list."
        tasks = [task("slicing", objective, ["pages/slicing.py", "tests/test_slicing.py"])]
        return submit(substantive=False, reason="page_count miscounts exact fits", success_criteria=criteria, tasks=tasks)
    tasks = [
        task("slicing", "Count the short last page in page_count, so that page() returns it.", ["pages/slicing.py", "tests/test_slicing.py"]),
        task("links", "Add links(items, number, size) in pages/links.py, with tests.", ["pages/links.py", "tests/test_links.py"]),
    ]
    return submit(substantive=True, reason="the count and the links are separate files", success_criteria=criteria, tasks=tasks)


def task(id, objective, globs):
    return {"id": id, "objective": objective, "read_only": False, "write_globs": globs, "additional_suite_ids": []}


def slicing(call, place):
    if place == "round-0":
        steps = [
            tool("read_file", path="pages/slicing.py"),
            tool("edit_file", path="pages/slicing.py", old=LOST, new=HASTY),
            done("page_count counts the short last page"),
        ]
    else:
        steps = [
            tool("run_command", command=SUITE),
            tool("edit_file", path="pages/slicing.py", old=HASTY, new=RIGHT),
            tool("edit_file", path="tests/test_slicing.py", old=EMPTY_TEST.partition("\n\n")[0] + "\n", new=EMPTY_TEST),
            tool("run_command", command=SUITE),
            done("page_count rounds up, and an empty list has one empty page; all tests ran and passed"),
        ]
    return steps[min(call.turn, len(steps) - 1)]


def links(call, place):
    steps = [
        tool("list_directory", path="."),
        [
            tool("write_file", path="pages/links.py", content=LINKS),
            tool("write_file", path="tests/test_links.py", content=LINKS_TEST),
        ],
        done("links() gives the previous and next page number"),
    ]
    return steps[min(call.turn, len(steps) - 1)]


def done(summary):
    return submit(status="completed", summary=summary, unresolved_risks=[])


def bound(call):
    return {
        "candidate_id": call.data["candidate"]["id"],
        "candidate_sha": call.data["candidate"]["sha"],
        "test_report_digest": call.data["test_report"]["digest"],
        "evidence_digest": call.data["evidence"]["digest"],
    }


def reduce(call, place):
    passed = call.data["test_report"]["passed"]
    summary = "page_count counts a short last page; links() names the neighbours of a page."
    return submit(
        **bound(call),
        summary=summary if passed else summary + " A list that fits exactly is miscounted: the unit suite fails.",
        acceptance_evidence=[f"suite unit {'passed' if passed else 'failed'}: {criterion}" for criterion in call.data["success_criteria"]],
        unresolved_risks=[],
    )


def review(call, place):
    passed = call.data["test_report"]["passed"]
    issue = "pages/slicing.py: page_count(range(8), 4) is 3, an empty page is counted for a list that fits exactly; it must be 2."
    return submit(
        **bound(call),
        candidate_passed=passed,
        blocking_issues=[] if passed else [issue],
        evidence=["read the diff", f"suite unit {'passed' if passed else 'failed'}"],
    )
