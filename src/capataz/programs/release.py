"""Release: a small planner says whether; code deploys, verifies, rolls back and pages. Production asks a person, staging does not."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from capataz import ask, checkpoint, program, run, scope, step, tell
from capataz.contracts.canonical import to_json
from capataz.contracts.records import Record
from capataz.programs.heartbeat import Ended, shell
from capataz.programs.prompting import render

ERROR_CHARACTERS = 300


class ReleaseInput(Record):
    """``deploy``, ``verify``, ``rollback``: shell commands of yours, run in the folder that the run was started in.

    They run again after a crash that cut them off; ``deploy_once`` True: the run then waits for ``capataz resolve`` instead.
    """

    service: str = Field(min_length=1)
    version: str = Field(min_length=1)
    environment: Literal["staging", "production"]
    deploy: str = Field(min_length=1)
    verify: str = Field(min_length=1)
    rollback: str = Field(min_length=1)
    context: str = ""
    approvers: list[str] = []
    page: str = "on-call"
    max_attempts: int = Field(default=2, ge=1, le=10)
    command_timeout_s: float = Field(default=900, gt=0)
    deploy_once: bool = False
    model: str | None = None


class Intent(Record):
    """What the planner wants, for the person who approves and for the program that acts."""

    action: Literal["deploy", "stop"]
    risk: Literal["low", "high"]
    reason: str


class Attempt(Record):
    number: int
    intent: Intent
    approved_by: str | None = None             # None: nobody was asked
    errors: list[str] = []


class ReleaseResult(Record):
    """``rollback_failed``: neither the new version nor the old one is known to run; somebody was paged."""

    outcome: Literal["released", "stopped", "declined", "rolled_back", "rollback_failed"]
    attempts: list[Attempt]


@program
async def release(input: ReleaseInput) -> ReleaseResult:
    """Deploys, verifies, and rolls back and pages when that fails; asks a person before production."""
    attempts: list[Attempt] = []
    for number in range(input.max_attempts):
        async with scope(f"attempt-{number}"):
            attempt = await _intent(input, number, attempts)
            attempts.append(attempt)
            if attempt.intent.action == "stop":
                return ReleaseResult(outcome="rolled_back" if number else "stopped", attempts=attempts)
            if input.environment == "production":
                answer = await _approval(input, attempt)
                if answer[0] != "approve":
                    return ReleaseResult(outcome="declined", attempts=attempts)
                attempts[-1] = attempt = attempt.model_copy(update={"approved_by": answer[1]})
            errors, restored = await _deploy(input)
            attempts[-1] = attempt.model_copy(update={"errors": errors})
        if not errors:
            return ReleaseResult(outcome="released", attempts=attempts)
        if not restored:
            return ReleaseResult(outcome="rollback_failed", attempts=attempts)
    return ReleaseResult(outcome="rolled_back", attempts=attempts)


async def _intent(input: ReleaseInput, number: int, before: list[Attempt]) -> Attempt:
    data = {
        "service": input.service,
        "version": input.version,
        "environment": input.environment,
        "context": input.context,
        "errors": [error for attempt in before for error in attempt.errors],
    }
    intent = await run("planner", prompt=render({}, "release"), data=data, type="reason", output=Intent, model=input.model)
    return Attempt(number=number, intent=intent)


async def _approval(input: ReleaseInput, attempt: Attempt) -> tuple[str, str]:
    context = {"intent": to_json(attempt.intent), "attempt": attempt.number, "commands": [input.deploy, input.verify, input.rollback]}
    answer = await ask(
        f"Deploy {input.service} {input.version} to production?",
        kind="approval",
        context=context,
        risk=attempt.intent.risk,
        approvers=input.approvers,
    )
    return answer.value, answer.by


async def _deploy(input: ReleaseInput) -> tuple[list[str], bool]:
    """What went wrong, and whether the state is known to be good: the new version runs, or the old one was restored."""
    name = f"{input.service} {input.version} on {input.environment}"
    deployed = await step("deploy", shell, input.deploy, input.command_timeout_s, idempotent=not input.deploy_once)
    error = _error("deploy", deployed)
    if error is None:
        error = _error("verify", await step("verify", shell, input.verify, input.command_timeout_s))
    if error is None:
        await checkpoint(f"{name} is deployed and verified")
        return [], True
    undone = _error("rollback", await step("rollback", shell, input.rollback, input.command_timeout_s))
    if undone is None:
        await tell(input.page, f"{name} was rolled back: {error}", severity="page")
        return [error], True
    await tell(input.page, f"{name} is broken and could not be rolled back: {error}; {undone}", severity="page")
    return [error, undone], False


def _error(what: str, ended: Ended) -> str | None:
    """One line for the planner and the pager; None: it went well."""
    if ended.exit_code == 0:
        return None
    how = "ran out of time" if ended.exit_code is None else f"ended with {ended.exit_code}"
    return f"{what} {how}: {' '.join(ended.output.split())[-ERROR_CHARACTERS:]}"
