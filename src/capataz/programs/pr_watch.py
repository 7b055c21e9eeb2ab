"""Watching a branch: each comment that arrives is researched, implemented, reviewed by another model and answered."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from capataz import checkpoint, program, receive, run, scope, tell
from capataz.contracts.errors import DeadlineExceeded, OrchestrationError, OutputInvalid
from capataz.contracts.records import Record
from capataz.programs.attempt import ENDS_ALL, compact
from capataz.programs.goal_pr import GoalInput, GoalResult, goal_pr
from capataz.programs.research import Packet, ResearchInput, research


class Comment(Record):
    """What ``capataz notify`` delivers as JSON. ``author``: who is answered."""

    author: str
    text: str = Field(min_length=1)


class WatchInput(Record):
    """``base``: the branch or revision to build on. ``comments``: known at the start; further ones come to the run's inbox.

    The watch ends after ``max_comments``, or when nothing came for ``idle``; ``idle`` None: it does not wait at all.
    """

    repository: str = "."
    base: str | None = None
    comments: list[Comment] = []
    max_comments: int = Field(default=20, ge=1, le=1000)
    idle: str | None = "7d"
    research_first: bool = False
    max_rounds: int = Field(default=3, ge=1, le=20)
    model: str | None = None
    reviewer_model: str | None = None
    max_turns: int = Field(default=40, ge=1)


class Reply(Record):
    comment: Comment
    outcome: Literal["published", "not_approved", "failed"]
    text: str


class WatchResult(Record):
    """``head``: the commit of ``capataz/RUN``, with the work for every published reply; None: there is none."""

    replies: list[Reply]
    head: str | None = None


@program
async def pr_watch(input: WatchInput) -> WatchResult:
    """Watches for comments; implements each, lets another model check it, publishes to a branch and replies."""
    replies: list[Reply] = []
    head: str | None = None
    waiting = list(input.comments)
    for number in range(input.max_comments):
        comment = waiting.pop(0) if waiting else await _next(input)
        if comment is None:
            break
        async with scope(f"comment-{number}"):
            reply, head = await _handle(input, comment, head)
            await tell(comment.author, reply.text)
        replies.append(reply)
    return WatchResult(replies=replies, head=head)


async def _next(input: WatchInput) -> Comment | None:
    """The next comment; a message that is none is said and passed over."""
    while input.idle is not None:
        try:
            return await receive(Comment, within=input.idle)
        except DeadlineExceeded:
            return None
        except OutputInvalid as error:
            await checkpoint("A message was no comment", {"error": compact(error)})
    return None


async def _handle(input: WatchInput, comment: Comment, head: str | None) -> tuple[Reply, str | None]:
    try:
        done = await run(goal_pr, input=_goal(input, comment, head, await _packet(input, comment, head)))
    except ENDS_ALL:
        raise
    except OrchestrationError as error:
        return Reply(comment=comment, outcome="failed", text=f"That failed: {compact(error)}"), head
    if done.promotion is None:
        return Reply(comment=comment, outcome="not_approved", text=_why(done)), head
    text = f"Done in {done.promotion.new[:12]} on {done.promotion.ref.removeprefix('refs/heads/')}: {done.rounds[-1].summary}"
    return Reply(comment=comment, outcome="published", text=text), done.promotion.new


async def _packet(input: WatchInput, comment: Comment, head: str | None) -> Packet | None:
    if not input.research_first:
        return None
    wanted = ResearchInput(
        repository=input.repository, question=comment.text, base=head or input.base, model=input.model, max_turns=input.max_turns
    )
    return await run(research, input=wanted)


def _goal(input: WatchInput, comment: Comment, head: str | None, packet: Packet | None) -> GoalInput:
    return GoalInput(
        repository=input.repository,
        goal=comment.text,
        packet=packet,
        base=head or input.base,
        published=head,
        max_rounds=input.max_rounds,
        model=input.model,
        reviewer_model=input.reviewer_model,
        max_turns=input.max_turns,
    )


def _why(done: GoalResult) -> str:
    last = done.rounds[-1]
    reasons = [*([last.error] if last.error else []), *(f"suite {id} failed" for id in last.failed_suites), *last.issues]
    return f"Not done after {len(done.rounds)} rounds: {'; '.join(reasons) or 'the reviewer did not approve'}"
