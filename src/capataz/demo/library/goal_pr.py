# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for goal_pr and pr_watch on the sample repository: the reviewer finds what the implementer forgot."""

LOST = "    return len(items) // size\n"
HALF = "    return -(-len(items) // size)\n"
RIGHT = "    return max(1, -(-len(items) // size))\n"


def respond(call):
    if call.agent.endswith("reviewer"):
        return review(call)
    if call.data["goal"].startswith("Say"):
        return note(call)
    old, new = (LOST, HALF) if "round-0" in call.agent else (HALF, RIGHT)
    if call.turn == 0:
        return tool("edit_file", path="pages/slicing.py", old=old, new=new)
    return submit(status="completed", summary="page_count rounds up", unresolved_risks=[])


def note(call):
    if call.turn == 0:
        return tool("write_file", path="NOTES.md", content="A page count is never 0.\n")
    return submit(status="completed", summary="NOTES.md says it", unresolved_risks=[])


def review(call):
    if call.turn == 0:
        return tool("read_file", path="pages/slicing.py")
    found = next(message["content"] for message in call.messages if message.get("tool_name") == "read_file")
    issues = [] if "max(1," in found else ["pages/slicing.py: an empty list has 0 pages, it must be 1"]
    return submit(approved=not issues, issues=issues)
