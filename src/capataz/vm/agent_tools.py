"""A program's own tools, and those of MCP servers, in the hands of an agent: approval before a call, doubt after a crash, the call itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue, canonical_text, digest
from capataz.contracts.errors import DeadlineExceeded, NotFound
from capataz.contracts.harness import ToolReply, ToolSpec
from capataz.contracts.journal import Batch
from capataz.vm.agent_states import present_call
from capataz.vm.committer import Part
from capataz.vm.effects import step

if TYPE_CHECKING:
    from capataz.vm.agent_ports import JournaledPorts
    from capataz.vm.effect import Effect
    from capataz.vm.run import Run

SHOWN = 300
Perform = Callable[[], Awaitable[ToolReply]]


class AgentTools:
    def __init__(self, run: Run, effect: Effect, ports: JournaledPorts) -> None:
        self._run = run
        self._effect = effect
        self._ports = ports
        self._own: dict[str, dict[str, Any]] = {
            given["name"]: given for given in (*(effect.args.get("own_tools") or ()), *(effect.args.get("mcp_tools") or ()))
        }

    async def admit(self, key: str, *, place: str, name: str, arguments: JsonValue, perform: Perform, repeated: bool) -> Perform:
        """What a call does: itself, or what stands in its place after a decline or a decision about a call in doubt.

        A question comes before the call's own request is journaled: a crash while it stands leaves no call in doubt.
        """
        own = self._own.get(name)
        if own is None:
            return perform
        if repeated and not own["idempotent"]:
            perform = await self._decided(key, name, perform)
        declined = await self._declined(own, place, name, arguments)
        return perform if declined is None else _answering(declined)

    async def _declined(self, own: dict[str, Any], place: str, name: str, arguments: JsonValue) -> ToolReply | None:
        if own["gate"] is None or not await self._effect.instance.call(own["gate"], [arguments]):
            return None
        call = f"{name}({_arguments(arguments)})"
        answer = await self._ports.question(
            f"May {self._ports.name} call {call}?", kind="approval", options=["approve", "decline"], place=place,
            context={"agent": self._ports.name, "tool": name, "arguments": arguments}, binding=digest([name, arguments]),
        )
        if answer["value"] == "approve":
            return None
        note = f": {answer['note']}" if answer.get("note") else ""
        return ToolReply(content=f"error: {answer['by']} declined this call of {name}{note}; it was not made", failed=True, summary=f"declined by {answer['by']}")

    async def _decided(self, key: str, name: str, perform: Perform) -> Perform:
        decided = await step.decision(self._run, self._effect, key, f"tool call {name}")
        await self._run.committer.durable(Part(Batch(inbox_done=self._run.inbox.resolved(key))))
        if "result" not in decided.body:
            return perform
        return _answering(ToolReply(content=text_of(decided.body["result"]), summary="as a person said"))

    async def call(self, name: str, arguments: JsonValue) -> JsonValue:
        """Runs the function in a child of the program's process. Raises ``StepFailed``, ``DeadlineExceeded``, ``UsageError``."""
        own = self._own.get(name)
        if own is None:
            raise NotFound(f"there is no tool {name}")
        env = {**step.environment(self._run), "CAPATAZ_CALL_KEY": digest([self._run.run_id, present_call.get()])[:32]}
        self._run.ports.faults.reach("step.before")
        try:
            async with asyncio.timeout(own["timeout_s"]):
                result = await self._effect.instance.fork_callback(name, own["call"], [arguments], env)
        except TimeoutError:
            raise DeadlineExceeded(f"{name} did not end within {own['timeout_s']:g} s and was stopped; what it did until then stands") from None
        self._run.ports.faults.reach("step.after")
        return result


def own_tools(effect: Effect) -> tuple[ToolSpec, ...]:
    """What the harness offers of the program's own."""
    return tuple(
        ToolSpec(name=given["name"], description=given["description"], parameters=given["parameters"])
        for given in effect.input.get("own_tools") or ()
    )


def text_of(value: JsonValue) -> str:
    """A tool's result as the model reads it."""
    return value if isinstance(value, str) else canonical_text(value)


def _answering(reply: ToolReply) -> Perform:
    async def perform() -> ToolReply:
        return reply

    return perform


def _arguments(arguments: JsonValue) -> str:
    given = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    shown = ", ".join(f"{name}={canonical_text(value)}" for name, value in given.items())
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
