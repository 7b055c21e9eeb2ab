"""Ralph: a fresh agent again and again on what the one before left, until a check passes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from capataz import checkpoint, coding, program, scope
from capataz.contracts.coding import CodingJob, JobOptions, Promotion
from capataz.contracts.errors import OrchestrationError
from capataz.contracts.records import Candidate, Record
from capataz.programs.attempt import ENDS_ALL, attempt, compact, tail
from capataz.programs.prompting import render


class RalphInput(Record):
    """``check``: a shell command that ends with 0 once the task is done; it runs in a sandbox, on the files as they are then."""

    repository: str = "."
    task: str = Field(min_length=1)
    check: str = Field(min_length=1)
    base: str | None = None
    max_iterations: int = Field(default=10, ge=1, le=1000)
    check_timeout_s: float = Field(default=600, gt=0)
    protect: list[str] = []                    # globs that no agent may change, for example the check's own files
    model: str | None = None
    max_turns: int = Field(default=40, ge=1)


class Iteration(Record):
    """``passed`` is the check's word. ``error``: the agent's, when it left no candidate; the files are then as before."""

    number: int
    passed: bool = False
    summary: str = ""
    sha: str | None = None
    error: str | None = None


class RalphResult(Record):
    """``promotion``: the branch ``capataz/RUN`` with what passed; None when nothing did, or nothing had to be done."""

    outcome: Literal["passed", "already_passed", "not_passed"]
    iterations: list[Iteration] = []
    promotion: Promotion | None = None
    check_output: str = ""


@program
async def ralph(input: RalphInput) -> RalphResult:
    """Runs a fresh agent again and again on a repository until a check passes, then publishes to a branch."""
    options = JobOptions(model=input.model, max_turns=input.max_turns)
    job = protected(await coding.job(input.repository, input.task, base=input.base, options=options), input.protect)
    done = await coding.measure(job, input.check, sha=job.request.base_sha, timeout_s=input.check_timeout_s)
    if done.passed:
        return RalphResult(outcome="already_passed", check_output=tail(done.output))
    history: list[Iteration] = []
    sha, said = job.request.base_sha, tail(done.output)
    for number in range(input.max_iterations):
        async with scope(f"iteration-{number}"):
            iteration, candidate, said = await _iterate(input, job, number, sha=sha, said=said)
        history.append(iteration)
        sha = iteration.sha or sha
        if iteration.passed and candidate is not None:
            promotion = await coding.publish(job, candidate)
            return RalphResult(outcome="passed", iterations=history, promotion=promotion, check_output=said)
    return RalphResult(outcome="not_passed", iterations=history, check_output=said)


async def _iterate(
    input: RalphInput, job: CodingJob, number: int, *, sha: str, said: str
) -> tuple[Iteration, Candidate | None, str]:
    data = {"task": input.task, "check": input.check, "check_output": said}
    prompt = render(job.policy.prompts, "ralph", iteration=number + 1, max_iterations=input.max_iterations)
    try:
        candidate, summary = await attempt(job, "ralph", prompt=prompt, data=data, base_sha=sha, number=number)
    except ENDS_ALL:
        raise
    except OrchestrationError as error:
        await checkpoint(f"Iteration {number} left no candidate", {"error": compact(error)})
        return Iteration(number=number, error=compact(error)), None, said
    done = await coding.measure(job, input.check, sha=candidate.sha, timeout_s=input.check_timeout_s)
    await checkpoint(f"Iteration {number}: the check {'passed' if done.passed else 'failed'}", {"exit_code": done.exit_code})
    return Iteration(number=number, passed=done.passed, summary=summary, sha=candidate.sha), candidate, tail(done.output)


def protected(job: CodingJob, globs: list[str]) -> CodingJob:
    """The job with further files that no candidate may change."""
    scopes = job.policy.scopes.model_copy(update={"protected": [*job.policy.scopes.protected, *globs]})
    return job.model_copy(update={"policy": job.policy.model_copy(update={"scopes": scopes})})
