"""What the kernel does for each kind of effect: tables of handlers, one module a family."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import digest
from capataz.contracts.errors import ProgramError
from capataz.vm.effects import agent, coding, control, people, states, step, time

if TYPE_CHECKING:
    from capataz.vm.committer import Part
    from capataz.vm.effect import Completion, Done, Effect
    from capataz.vm.run import Run

_PERFORM: dict[str, Callable[[Run, Effect], Awaitable[Done]]] = {
    "agent": agent.perform,
    "step": step.perform,
    "child": control.perform_child,
    "ask": people.perform_ask,
    "receive": people.perform_receive,
    "artifact": people.perform_artifact,
    "sleep": time.perform_sleep,
    "state": states.perform,
}

INLINE: dict[str, Callable[[Run, Effect], Done]] = {
    "now": time.now,
    "checkpoint": people.checkpoint,
    "tell": people.tell,
    "budget": control.budget,
    "control": control.control,
    "messages": people.messages,
    "loop": control.loop,
    "epoch": control.epoch,
}
"""Effects that need nobody: journaled with their request in one commit."""

IDENTITY: dict[str, Callable[[Run, Any], Any]] = {"agent": agent.identity, "coding.freeze": coding.freeze_identity}
"""What the runtime adds to the inputs that identify an effect."""

AT_REQUEST: dict[str, Callable[[Run, Effect], Part]] = {
    "agent": agent.at_request,
    "ask": people.ask_at_request,
    "sleep": time.sleep_at_request,
}
AT_COMPLETION: dict[str, Callable[[Run, Completion], Part]] = {
    "agent": agent.at_completion,
    "ask": people.ask_at_completion,
    "sleep": time.sleep_at_completion,
    "state": states.at_completion,
    **coding.AT_COMPLETION,
}
OWN_DEADLINE = frozenset({"ask", "receive"})
EARLY = frozenset({"agent", "child"})
"""Effects that may begin before their request is durable: whatever they do outside (a model call, a tool, a step) has a request
of its own, which is durable no earlier. So an agent costs no wait of its own before its first model call."""


def performer(kind: str) -> Callable[[Run, Effect], Awaitable[Done]]:
    if kind.startswith("coding."):
        return coding.perform
    found = _PERFORM.get(kind)
    if found is None:
        raise ProgramError(f"{kind!r} is no kind of effect")
    return found


def kept_input(run: Run, effect: Effect) -> Any:
    """The input as the journal keeps it: a job, which is the run's own input, only by its digest; what later decides about
    reuse (a child's sources) and orphans (whether a step may be repeated) with it."""
    if effect.kind.startswith("coding.") and isinstance(effect.input, dict) and "job" in effect.input:
        return {**effect.input, "job": {"sha256": digest(effect.input["job"])}}
    if effect.kind == "step" and not effect.args.get("idempotent", True):
        return {**effect.input, "idempotent": False}
    if effect.kind == "child":
        return {**effect.input, "source": run.child_source(effect)}
    return effect.input
