"""The one retry policy of model calls. Nothing else in Capataz, Agno or an SDK retries them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from capataz.agents.model_client import CallInfo, ClientReply, ModelClient, ProviderFailure
from capataz.contracts.canonical import digest
from capataz.contracts.clock import Clock
from capataz.contracts.errors import CapatazError, ProviderRejected, ProviderUnavailable
from capataz.contracts.masking import mask_shapes, one_line

MAX_RETRIES = 5
LONGEST_WAIT_S = 600.0                         # a provider that asks for more is not coming back within a run
_RETRIED = frozenset({408, 409, 425, 429, 529})


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before retry n: ``first_s * 2**n``, at most ``most_s``, of which a random half is taken off."""

    first_s: float = 1.0
    most_s: float = 30.0
    most_retry_after_s: float = LONGEST_WAIT_S

    def delay(self, attempt: int, seed: str) -> float:
        full = min(self.most_s, self.first_s * 2**attempt)
        return full * (0.5 + 0.5 * random.Random(seed).random())


PROVIDER = Backoff()
SCRIPTED = Backoff(first_s=0.05, most_s=1.0, most_retry_after_s=5.0)
"""Scripted failures recover in real but short time: a longer ``retry_after`` is cut, not refused."""


def is_retried(failure: ProviderFailure) -> bool:
    """Whether another attempt may help."""
    if failure.kind == "http":
        return failure.status is None or failure.status >= 500 or failure.status in _RETRIED
    return failure.kind != "context"


async def reply_with_retries(
    client: ModelClient,
    *,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    output_schema: dict[str, Any] | None,
    max_output_tokens: int,
    call: CallInfo,
    emit: Callable[..., None],
    clock: Clock,
    deadline: float | None,
) -> ClientReply:
    """The client's reply, after at most ``MAX_RETRIES`` further attempts. ``deadline``: ``clock.now()`` seconds.

    Raises ``ProviderRejected`` at once for what no retry mends, ``ProviderUnavailable`` after the last attempt or when
    the next one would begin past the deadline; context overflow and every ``CapatazError`` pass through unchanged.
    """
    first = call.attempt
    while True:
        try:
            return await client.reply(
                messages=messages, tools=tools, output_schema=output_schema, max_output_tokens=max_output_tokens, call=call
            )
        except ProviderFailure as failure:
            if failure.kind == "context":
                raise
            verdict = _verdict(client.model, failure, call, call.attempt - first, clock, deadline)
            _report(emit, client.model, failure, call, verdict)
            if isinstance(verdict, CapatazError):
                raise verdict from failure
            wait = verdict
        await clock.sleep(wait)
        call = dataclasses.replace(call, attempt=call.attempt + 1)


def _verdict(
    model: str, failure: ProviderFailure, call: CallInfo, retries: int, clock: Clock, deadline: float | None
) -> float | CapatazError:
    """Seconds until the next attempt, or the error that ends the call."""
    said = describe(model, failure)
    if not is_retried(failure):
        return ProviderRejected(said, status=failure.status)
    attempts = retries + 1
    if retries >= MAX_RETRIES:
        return ProviderUnavailable(f"{said} (after {attempts} attempts)", attempts=attempts, status=failure.status, kind=failure.kind)
    scripted = model.startswith("scripted:")
    backoff = SCRIPTED if scripted else PROVIDER
    seed = digest([call.run_id, call.agent, call.turn, call.attempt])
    wait = backoff.delay(retries, seed)
    if failure.retry_after_s is not None:
        wait = max(0.0, failure.retry_after_s)
        if wait > backoff.most_retry_after_s and not scripted:
            return ProviderUnavailable(
                f"{said}; it asks to wait {wait:.0f} s", attempts=attempts, status=failure.status, kind=failure.kind, retry_after_s=wait
            )
        wait = min(wait, backoff.most_retry_after_s)
    if deadline is not None and clock.now() + wait >= deadline:
        return ProviderUnavailable(f"{said}; no time is left to try again", attempts=attempts, status=failure.status, kind=failure.kind)
    return float(wait)


def describe(model: str, failure: ProviderFailure) -> str:
    """One line without secrets: model, what happened, what the provider said."""
    what = {"stall": "stalled", "reset": "connection lost", "truncated": "answer cut off", "context": "context too long"}
    label = f"answered {failure.status}" if failure.kind == "http" and failure.status else what.get(failure.kind, "failed")
    return f"{model} {label}: {one_line(mask_shapes(failure.message)) or 'no message'}"


def _report(emit: Callable[..., None], model: str, failure: ProviderFailure, call: CallInfo, verdict: float | CapatazError) -> None:
    ended = isinstance(verdict, CapatazError)
    emit(
        "model.failed",
        agent=call.agent,
        turn=call.turn,
        attempt=call.attempt,
        code=verdict.code if ended else ProviderUnavailable.code,
        message=describe(model, failure),
        retry_in_s=None if ended else round(verdict, 3),
    )
