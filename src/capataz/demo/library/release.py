# ruff: noqa: F821
# pyright: basic, reportUndefinedVariable=false
# mypy: ignore-errors
"""A scripted model for release: it deploys once, and stops when the check of the service failed."""


def respond(call):
    if any("503" in error for error in call.data["errors"]):
        return submit(action="stop", risk="high", reason="the new version answers 503")
    return submit(action="deploy", risk="low", reason="nothing speaks against it")
