# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for heartbeat: it pages once and remembers that it did."""


def respond(call):
    first = not call.data["memory"]
    return submit(report="The queue is at 130.", page=first, memory="paged for the queue")
