"""``AgentPorts`` over a dictionary: enough of a kernel to see what a harness journals and what a restart finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import digest
from capataz.contracts.errors import BudgetExhausted
from capataz.contracts.harness import AgentLimits, AgentTask, ModelReply, ToolReply
from capataz.contracts.journal import Usage
from capataz.contracts.sandbox import Mount, Session

Start = Callable[[Mapping[int, Path], tuple[Mount, ...]], Awaitable[Session]]


def task(**given: Any) -> AgentTask:
    base: dict[str, Any] = {
        "run_id": "r1", "key": "k1", "name": "worker:a", "type": "general", "prompt": "Write hello.txt", "data": None, "model": "scripted:/x.py",
        "output_schema": None, "tools": None, "limits": AgentLimits(max_turns=20, max_output_tokens=500),
    }  # fmt: skip
    return AgentTask(**{**base, **given})


class FakePorts:
    def __init__(self, start: Start | None = None, *, max_calls: int = 1000) -> None:
        self.start = start
        self.max_calls = max_calls
        self.journal: dict[str, Any] = {}
        self.performed: list[str] = []         # model calls that really went out
        self.programs = 0                      # tool calls that really ran
        self.usage = Usage()
        self.estimates: list[Usage] = []
        self.events: list[dict[str, Any]] = []
        self.stored: list[bytes] = []
        self.refusals: list[str] = []
        self._session: Session | None = None

    async def model_call(self, *, turn: int, request: Any, estimate: Usage, perform: Callable[[], Awaitable[ModelReply]]) -> ModelReply:
        key = digest(["model", turn, request])
        if key in self.journal:
            return self.journal[key]
        self.estimates.append(estimate)
        if len(self.performed) >= self.max_calls:
            raise BudgetExhausted("the account is spent", account="")
        self.performed.append(key)
        reply = await perform()
        digest(reply.response)                 # it must be JSON
        self.journal[key] = reply
        self.usage = self.usage + dataclasses.replace(reply.usage, model_calls=1)
        return reply

    async def tool_call(self, *, turn: int, position: int, name: str, arguments: Any, writes: bool, perform: Callable[[], Awaitable[ToolReply]]) -> ToolReply:
        key = digest(["tool", turn, position, name, arguments])
        if key not in self.journal:
            self.programs += 1
            self.journal[key] = await perform()
        return self.journal[key]

    async def accept(self, *, turn: int, value: Any) -> str | None:
        return self.refusals.pop(0) if self.refusals else None

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        if self._session is None:
            assert self.start is not None
            self._session = await self.start(forwards or {}, read_only)
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.kill()

    def emit(self, type: str, **data: Any) -> None:
        self.events.append({"type": type, **data})

    async def store(self, data: bytes, *, name: str, media_type: str) -> str:
        self.stored.append(data)
        return "blob:x"

    async def changed(self) -> str | None:
        return None

    async def steering(self, *, turn: int) -> list[str]:
        return []

    async def select_context(self, *, turn: int, messages: list[Any]) -> list[Any] | None:
        return None

    async def ask(self, question: str, options: list[str] | None) -> str:
        raise AssertionError("not asked here")
