"""Heartbeat: an agent that lives for months. Each beat looks at a status, reads its inbox, says what it saw, and sleeps."""

from __future__ import annotations

import subprocess
from typing import Any

from pydantic import Field

from capataz import checkpoint, loop, messages, program, run, scope, step, tell
from capataz.contracts.canonical import to_json
from capataz.contracts.errors import OrchestrationError
from capataz.contracts.records import Record
from capataz.programs.attempt import ENDS_ALL, compact
from capataz.programs.prompting import render

TAIL_CHARACTERS = 8000


class HeartbeatInput(Record):
    """``status``: a shell command of yours, run in the folder that the run was started in. ``beats``: 0 means for ever."""

    duty: str = Field(min_length=1)
    status: str = Field(min_length=1)
    every: str = "5m"
    beats: int = Field(default=0, ge=0)
    status_timeout_s: float = Field(default=60, gt=0)
    page: str = "on-call"
    model: str | None = None


class Ended(Record):
    """How a command of the person's own ended. ``exit_code`` None: it was stopped after its time."""

    exit_code: int | None
    output: str


class Beat(Record):
    report: str
    page: bool = False
    memory: str = ""


class Life(Record):
    """What goes from beat to beat. ``failures``: beats in a row whose agent failed."""

    beats: int = 0
    memory: str = ""
    last_report: str = ""
    pages: int = 0
    failures: int = 0


@program
async def heartbeat(input: HeartbeatInput) -> Life:
    """Checks a status again and again, reads its inbox, reports, remembers and pages, for as long as you like."""

    async def beat(life: Life) -> Life:
        async with scope(f"beat-{life.beats}"):
            return await _beat(input, life)

    return await loop(beat, Life(), every=input.every, until=input.beats or None)


async def _beat(input: HeartbeatInput, life: Life) -> Life:
    status = await step("status", shell, input.status, input.status_timeout_s)
    inbox = [{"from": message.sender, "body": message.body} for message in await messages()]
    data: dict[str, Any] = {"duty": input.duty, "status": to_json(status), "messages": inbox, "memory": life.memory}
    try:
        done = await run("heart", prompt=render({}, "heartbeat"), data=data, type="reason", output=Beat, model=input.model)
    except ENDS_ALL:
        raise
    except OrchestrationError as error:
        return await _failed(input, life, compact(error))
    await checkpoint(done.report, {"beat": life.beats, "exit_code": status.exit_code})
    if done.page:
        await tell(input.page, done.report, severity="page")
    return Life(beats=life.beats + 1, memory=done.memory, last_report=done.report, pages=life.pages + done.page)


async def _failed(input: HeartbeatInput, life: Life, error: str) -> Life:
    """One beat may fail; a watcher that cannot watch says so once."""
    await checkpoint("The beat failed", {"beat": life.beats, "error": error})
    page = life.failures == 2
    if page:
        await tell(input.page, f"three beats in a row failed: {error}", severity="page")
    return life.model_copy(update={"beats": life.beats + 1, "failures": life.failures + 1, "pages": life.pages + page})


def shell(command: str, timeout_s: float) -> Ended:
    """A command of the person's own, outside any sandbox; the end of what it prints."""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return Ended(exit_code=None, output=_text(error.output))
    return Ended(exit_code=done.returncode, output=_text(done.stdout))


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace")[-TAIL_CHARACTERS:].strip()
