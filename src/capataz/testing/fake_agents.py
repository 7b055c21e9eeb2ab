"""Agents without models: a harness that asks a function, for tests of programs and of the kernel itself."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.coding import Emit, WorkspaceRef
from capataz.contracts.errors import CapatazError, SandboxUnavailable
from capataz.contracts.harness import AgentOutcome, AgentPorts, AgentTask, AgentType, Harness, ModelReply
from capataz.contracts.journal import RunRecord, Usage
from capataz.contracts.sandbox import Mount, Session


@dataclass(frozen=True, slots=True)
class FakeCall:
    """What the function sees: the agent's scoped name, its prompt, data and turn, and the steering messages of this turn."""

    agent: str
    prompt: str
    data: dict[str, JsonValue] | None
    turn: int
    steering: tuple[str, ...] = ()
    output_schema: JsonValue = None


Answer = JsonValue | CapatazError
Respond = Callable[[FakeCall], Answer | Awaitable[Answer]]
MORE = {"$fake": "another turn"}
"""An answer that makes the agent take another turn."""


class FakeHarness:
    """Each turn is one journaled model call; the answer that is not ``MORE`` ends the agent. ``calls``: those really made."""

    name = "fake"

    def __init__(self, respond: Respond, *, tokens: int = 0, price: Decimal = Decimal(0)) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.respond = respond
        self._usage = Usage(input_tokens=tokens, output_tokens=tokens, usd=price)

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        turn = 0
        seen: list[str] = []
        while turn < task.limits.max_turns:
            seen += await ports.steering(turn=turn)
            answer = await self._turn(task, ports, turn, tuple(seen))
            if answer != MORE:
                refusal = await ports.accept(turn=turn, value=answer)
                if refusal is None:
                    return _outcome(task, answer, turn + 1)
                seen.append(refusal)
            turn += 1
        raise AssertionError("the fake agent used all its turns")

    async def _turn(self, task: AgentTask, ports: AgentPorts, turn: int, seen: tuple[str, ...]) -> JsonValue:
        call = FakeCall(task.name, task.prompt, task.data, turn, seen, task.output_schema)

        async def perform() -> ModelReply:
            self.calls.append((task.name, task.prompt, turn))
            answer = self.respond(call)
            answer = await answer if inspect.isawaitable(answer) else answer
            if isinstance(answer, CapatazError):
                raise answer
            return ModelReply(response=answer, usage=self._usage)

        request = {"agent": task.name, "prompt": task.prompt, "data": task.data, "turn": turn, "seen": list(seen)}
        return (await ports.model_call(turn=turn, request=request, estimate=self._usage, perform=perform)).response


def _outcome(task: AgentTask, answer: JsonValue, turns: int) -> AgentOutcome:
    typed = task.output_schema is not None
    return AgentOutcome(text="" if typed else str(answer), output=answer if typed else None, turns=turns, messages=[])


class FakePrices:
    """What a call's usage says that it costs."""

    def price(self, model: str, usage: Usage) -> Decimal | None:
        return None if model == "unpriced/model" else usage.usd


class NoBench:
    """A bench of an agent that touches no file."""

    sandbox_s = 0.0

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        raise SandboxUnavailable("fake agents have no sandbox")

    async def snapshot(self) -> str | None:
        return None

    async def restore(self, tree: str) -> None:
        raise SandboxUnavailable("fake agents have no workspace")

    async def close(self) -> None:
        pass


class FakeAgents:
    """``contracts.runtime.AgentRuntime`` over one fake harness."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def resolve(self, model: str | None, options: Mapping[str, Any]) -> str:
        return model or str(options.get("model") or "fake/model")

    def identity(self, *, type: AgentType, tools: tuple[str, ...] | None, output_schema: JsonValue, harness: str) -> JsonValue:
        return {"type": type, "tools": list(tools or ()), "output": digest(output_schema)}

    def prices(self, options: Mapping[str, Any]) -> FakePrices:
        return FakePrices()

    def harness(self, name: str, options: Mapping[str, Any]) -> Harness:
        return self._harness

    def guidance(self, run: RunRecord) -> Mapping[str, str]:
        return {}

    async def bench(self, run: RunRecord, ref: WorkspaceRef | None, *, agent: str, type: AgentType, emit: Emit) -> NoBench:
        return NoBench()
