# ruff: noqa: F821
def respond(call):
    if call.turn == 0:
        return say("Let me think.")
    return submit(file="a.py", severity=1, text="nothing found")
