"""``AgentPorts`` in memory: a journal that can be replayed, and a record of everything that was asked."""

# ruff: noqa: PTH115, PTH114, PTH123
# Paths are bytes here.
from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue, canonical_bytes, digest
from capataz.contracts.errors import CapatazError, IllegalStateEdit, NotFound, UsageError
from capataz.contracts.harness import ModelReply, StateView, ToolReply
from capataz.contracts.journal import Usage
from capataz.contracts.sandbox import Mount, Session

Key = tuple[Any, ...]


class Crash(BaseException):
    """Stands for a killed process."""


@dataclass
class FakePorts:
    """``journal`` may be handed to the ports of a second run: then finished calls are answered from it.

    ``crash_after``: the number of live calls after which the process "dies" (before the next one starts).
    """

    session_: Session | None = None
    root: Path | None = None
    journal: dict[Key, Any] = field(default_factory=dict[Key, Any])
    accept_: Callable[[JsonValue], str | None] | None = None
    select_: Callable[[int, list[JsonValue]], list[JsonValue] | None] | None = None
    steer: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    answers: list[str] = field(default_factory=list[str])
    crash_after: int | None = None
    model_calls: list[tuple[int, JsonValue]] = field(default_factory=list[tuple[int, JsonValue]])
    tool_calls: list[tuple[int, int, str, JsonValue, bool]] = field(default_factory=list[tuple[int, int, str, JsonValue, bool]])
    events: list[tuple[str, dict[str, JsonValue]]] = field(default_factory=list[tuple[str, dict[str, JsonValue]]])
    stored: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[tuple[str, list[str] | None]] = field(default_factory=list[tuple[str, list[str] | None]])
    estimates: list[Usage] = field(default_factory=list[Usage])
    live: int = 0
    tree: str | None = None
    keep_requests: bool = True
    states: dict[str, list[JsonValue]] = field(default_factory=dict[str, list[JsonValue]])   # the versions of each
    own: dict[str, Callable[[JsonValue], JsonValue]] = field(default_factory=dict[str, Callable[[JsonValue], JsonValue]])
    refuse_edit: Callable[[JsonValue], str | None] | None = None

    async def _once(self, key: Key, perform: Callable[[], Awaitable[Any]]) -> Any:
        if key in self.journal:
            known = self.journal[key]
            if isinstance(known, CapatazError):
                raise known
            return known
        if self.crash_after is not None and self.live >= self.crash_after:
            raise Crash()
        self.live += 1
        try:
            self.journal[key] = result = await perform()
        except CapatazError as error:
            self.journal[key] = error
            raise
        return result

    async def model_call(self, *, turn: int, request: JsonValue, estimate: Usage, perform: Callable[[], Awaitable[ModelReply]]) -> ModelReply:
        key = ("model", turn, digest(request))
        if self.keep_requests:
            self.model_calls.append((turn, request))
            self.estimates.append(estimate)
        reply: ModelReply = await self._once(key, perform)
        canonical_bytes(reply.response)        # it must be journalable
        return reply

    async def tool_call(
        self, *, turn: int, position: int, name: str, arguments: JsonValue, writes: bool, perform: Callable[[], Awaitable[ToolReply]]
    ) -> ToolReply:
        key = ("tool", turn, position, name, digest(arguments))
        self.tool_calls.append((turn, position, name, arguments, writes))

        async def performed() -> ToolReply:
            reply = await perform()
            canonical_bytes([reply.content, reply.summary])
            if writes and self.root is not None:
                self.tree = tree_of(self.root)
            return reply

        return await self._once(key, performed)

    async def accept(self, *, turn: int, value: JsonValue) -> str | None:
        return self.accept_(value) if self.accept_ is not None else None

    async def steering(self, *, turn: int) -> list[str]:
        return self.steer.get(turn, [])

    async def select_context(self, *, turn: int, messages: list[JsonValue]) -> list[JsonValue] | None:
        return self.select_(turn, messages) if self.select_ is not None else None

    def emit(self, type: str, **data: JsonValue) -> None:
        self.events.append((type, data))

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        if self.session_ is None:
            raise UsageError("this agent has no workspace")
        return self.session_

    async def changed(self) -> str | None:
        return self.tree

    async def store(self, data: bytes, *, name: str, media_type: str) -> str:
        uri = "blob:" + hashlib.sha256(data).hexdigest()
        self.stored[uri] = data
        return uri

    async def ask(self, question: str, options: list[str] | None, *, place: str | None = None, context: JsonValue = None) -> str:
        self.asked.append((question, options))
        return self.answers.pop(0)

    async def own_tool(self, name: str, arguments: JsonValue) -> JsonValue:
        return self.own[name](arguments)

    async def state_read(self, name: str) -> StateView:
        if name not in self.states:
            raise NotFound(f"there is no state {name}")
        versions = self.states[name]
        return StateView(version=len(versions), value=versions[-1] if versions else None)

    async def state_edit(self, name: str, *, patch: JsonValue, version: int) -> StateView:
        present = await self.state_read(name)
        refused = self.refuse_edit(patch) if self.refuse_edit is not None else None
        if present.version != version or refused is not None:
            raise IllegalStateEdit(refused or f"state {name} is at version {present.version}, not {version}")
        self.states[name].append({**(present.value or {}), **patch})
        return await self.state_read(name)


def tree_of(root: Path) -> str:
    """A digest of all names, modes and bytes below a folder."""
    seen = hashlib.sha256()
    for folder, folders, names in os.walk(os.fsencode(root)):
        folders.sort()
        for name in sorted(names):
            path = folder + b"/" + name
            content = os.readlink(path) if os.path.islink(path) else _bytes(path)
            seen.update(b"%s\0%d\0%d\0" % (path, os.lstat(path).st_mode, len(content)) + content)
    return seen.hexdigest()


def _bytes(path: bytes) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()
