"""A scripted model for second_opinion.py: no provider, no key, no cost. `submit` is there without an import."""
# ruff: noqa: F821


def respond(call):
    if call.agent == "operator":
        return submit(risk=7, why="the old table is still read by the nightly export.")
    return submit(risk=2, why="no code of ours names the old table.")
