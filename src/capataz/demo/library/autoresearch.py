# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for autoresearch on the sample repository: better, worse, broken, better."""


def respond(call):
    number = int(call.agent.partition("experiment-")[2].partition("/")[0])
    return [shorter, longer, broken, shortest][number](call)


def shorter(call):
    return put(call, "sed -i '1d' pages/slicing.py", "the first line goes")


def longer(call):
    return put(call, "echo '# a comment' >> pages/slicing.py", "a comment")


def broken(call):
    return put(call, "echo 'def (' >> pages/slicing.py", "a syntax error")


def shortest(call):
    return put(call, "sed -i '/^$/d' pages/slicing.py", "no empty lines")


def put(call, command, why):
    if call.turn == 0:
        return tool("run_command", command=command)
    return submit(status="completed", summary=why, unresolved_risks=[])
