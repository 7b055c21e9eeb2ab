"""One attempt at a goal by a fresh agent: its own workspace, its files frozen, one candidate. Shared by the library's programs."""

from __future__ import annotations

from typing import Any

from capataz import coding, run
from capataz.contracts.coding import CodingJob
from capataz.contracts.errors import BudgetExhausted, Cancelled, EffectCancelled, OrchestrationError
from capataz.contracts.records import Candidate, WorkerOutput, WorkItem

TAIL = 2000
"""Characters of a command's output that the next agent sees."""
ENDS_ALL = (BudgetExhausted, Cancelled, EffectCancelled)
"""Errors that another attempt cannot mend."""


async def attempt(
    job: CodingJob, name: str, *, prompt: str, data: dict[str, Any], base_sha: str, number: int
) -> tuple[Candidate, str]:
    """The candidate and what the agent says of it. Raises what the agent, the freeze or the compose raises."""
    item = WorkItem(id="main", objective=job.request.request, write_globs=["**"])
    workspace = await coding.workspace(job, item, base_sha=base_sha, round=number)
    output = await run(
        name,
        prompt=prompt,
        data=data,
        output=WorkerOutput,
        model=job.options.model,
        max_turns=job.options.max_turns,
        workspace=workspace,
    )
    record = await coding.freeze(job, workspace, item, output, round=number)
    return await coding.compose(job, [record], base_sha=base_sha, round=number), output.summary


def compact(error: OrchestrationError) -> str:
    """An error as one line for the next agent."""
    return f"{error.code}: {error.message}"[:TAIL]


def tail(text: str) -> str:
    return text[-TAIL:].strip()
