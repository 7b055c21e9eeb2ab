"""Scopes: named regions that prefix keys, hold a budget, and bound deadlines and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import digest
from capataz.contracts.errors import CapatazError, DeadlineExceeded, UsageError
from capataz.vm.limits import Budget, Duration, duration
from capataz.vm.runtime import current, scope_path
from capataz.vm.sites import call_site

if TYPE_CHECKING:
    from capataz.vm.handle import Handle

_WHY: dict[type[BaseException], str] = {asyncio.CancelledError: "cancelled, or out of time"}

_inside: ContextVar[tuple[scope, ...]] = ContextVar("capataz_scopes", default=())


class scope:  # a verb, hence its lower-case name
    """``async with scope("round-0", budget=budget(usd=1), within="10m"):`` names a region of a program.

    Agents inside are named ``round-0/...``. What was spawned inside is cancelled when an error leaves the region; when its
    time is over it raises ``DeadlineExceeded``. A plain ``with`` works too, for a name alone.
    """

    def __init__(self, name: str, *, budget: Budget | None = None, within: Duration | None = None) -> None:
        self._name = _checked(name)
        self._budget = budget
        self._within_s = duration(within)
        self._site = call_site(2)
        self._timeout: asyncio.Timeout | None = None
        self._path: Token[str] | None = None
        self._stack: Token[tuple[scope, ...]] | None = None
        self._handles: list[Handle[Any]] = []

    def __enter__(self) -> scope:
        if self._budget is not None or self._within_s is not None:
            raise UsageError(f"{self._site}: a scope with a budget or a deadline needs `async with`")
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(error)

    async def __aenter__(self) -> scope:
        self._begin()
        try:
            if self._budget is not None:
                await current().request("budget", name=self._name, input=self._budget.limits(), site=self._site)
            if self._within_s is not None:
                self._timeout = asyncio.timeout(self._within_s)
                await self._timeout.__aenter__()
        except BaseException as error:
            self._end(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as over:
            if not self._timeout.expired() or over is error:
                raise
            raise DeadlineExceeded(f"{self._site}: scope {self._name!r} did not end within {self._within_s:g} s") from None

    def own(self, handle: Handle[Any]) -> None:
        """Ties spawned work to the region."""
        self._handles.append(handle)

    def _begin(self) -> None:
        if self._path is not None:
            raise UsageError(f"{self._site}: scope {self._name!r} is entered already; make a new one")
        path = scope_path.get()
        self._path = scope_path.set(f"{path}/{self._name}" if path else self._name)
        self._stack = _inside.set((*_inside.get(), self))

    def _end(self, error: BaseException | None) -> None:
        if self._path is None or self._stack is None:
            return
        scope_path.reset(self._path)
        _inside.reset(self._stack)
        self._path = self._stack = None
        if error is not None:
            reason = error.message if isinstance(error, CapatazError) else _WHY.get(type(error), type(error).__name__)
            for handle in self._handles:
                handle.abandon(f"scope {self._name} ended: {reason}")


@contextmanager
def outside() -> Iterator[None]:
    """What is spawned meanwhile belongs to no region: an epoch ends it by itself."""
    token = _inside.set(())
    try:
        yield
    finally:
        _inside.reset(token)


def own(handle: Handle[Any]) -> None:
    """Ties spawned work to all regions that it was spawned in."""
    for region in _inside.get():
        region.own(handle)


def _checked(name: object) -> str:
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or not all(parts) or any(part.startswith("~") for part in parts):
        raise UsageError(f"scope({name!r}): a name is text whose parts between '/' are not empty and do not begin with '~'")
    return "/".join(parts)


def hidden(label: str, key: str) -> str:
    """The scope of a ``fan_out`` item: not part of agents' names. ``/`` would make a level, so it is escaped."""
    safe = key.replace("%", "%25").replace("/", "%2F")
    return f"~{label}[{safe}]"


def item_key(item: object) -> str:
    """The default key of an item: its digest."""
    return digest(item)[:16]
