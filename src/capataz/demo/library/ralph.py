# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for ralph on the sample repository: the first agent forgets the empty list, the second mends it."""

LOST = "    return len(items) // size\n"
HALF = "    return -(-len(items) // size)\n"
RIGHT = "    return max(1, -(-len(items) // size))\n"


def respond(call):
    first = "iteration-0" in call.agent
    old, new = (LOST, HALF) if first else (HALF, RIGHT)
    if call.turn == 0:
        return tool("edit_file", path="pages/slicing.py", old=old, new=new)
    return submit(status="completed", summary="rounded up" if first else "an empty list has one page", unresolved_risks=[])
