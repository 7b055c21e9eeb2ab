"""An effect in flight, and how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError
from capataz.contracts.journal import EffectStatus, Usage
from capataz.vm.keys import Identity

if TYPE_CHECKING:
    from capataz.vm.instance import Instance
    from capataz.vm.lanes import Lane


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(frozen=True, slots=True)
class Done:
    """A good end. ``tree``: the workspace's tree after it."""

    result: JsonValue = None
    usage: Usage = field(default_factory=Usage)
    tree: str | None = None
    parts: tuple[Any, ...] = ()                # further ``committer.Part``s that must be durable with it


@dataclass(frozen=True, slots=True)
class Completion:
    """An end that waits for its delivery number."""

    effect: Effect
    status: EffectStatus
    ended_at: float
    done: Done = field(default_factory=Done)
    error: CapatazError | None = None
    repeated: bool = False
    reused_from: int | None = None


@dataclass(eq=False, slots=True)
class Effect:
    """One request of a program. ``waiting``: what durable thing it waits for; a run in which everything waits parks."""

    instance: Instance
    no: int
    kind: str
    name: str
    scope: str
    input: Any
    args: dict[str, Any]
    site: str
    identity: Identity
    started_at: float
    lane: Lane
    n: int                                     # its number in its lane: what the journal knows it by
    cancelled: str | None = None
    ended: bool = False
    task: asyncio.Task[None] | None = None
    waiting: dict[str, Any] | None = None
    suspended: bool = False                    # stopped at a safe point by a drain; goes on at the next resume
    repeated: bool = False                     # was in flight when a worker died
    paused: asyncio.Event = field(default_factory=_set_event)   # cleared: an agent waits before its next sub-effect

    @property
    def key(self) -> str:
        return self.identity.key
