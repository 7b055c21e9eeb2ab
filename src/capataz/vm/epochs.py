"""``loop``: endless work in epochs. Only the present epoch is kept in the journal that a resume reads."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import OutputInvalid, ProgramError, UsageError, ValueNotSerializable
from capataz.vm import determinism
from capataz.vm.life import finish
from capataz.vm.limits import Duration, duration
from capataz.vm.loop import ProgramLoop
from capataz.vm.migrations import recorded
from capataz.vm.runtime import Lane, Runtime, current, present_lane, scope_path
from capataz.vm.scopes import outside
from capataz.vm.sites import call_site
from capataz.vm.values import plain, problem, type_name

C = TypeVar("C")


async def loop(
    body: Callable[[C], Awaitable[C]],
    carry: C,
    *,
    every: Duration | None = None,
    until: Callable[[C], bool] | int | None = None,
) -> C:
    """``carry = await body(carry)``, again and again; returns the last ``carry`` once ``until`` says so (None: never).

    ``until``: a pure function of the carry that is asked after each epoch, or a number of epochs. ``every``: an epoch begins at
    the earliest so long after the one before began; the wait is durable and holds no process. When an epoch ends, all that it
    spawned is awaited (daemons and tasks that are left are cancelled), its journal is archived, and the carry is all that goes
    on: a resume continues with the present epoch, as fast after 100,000 epochs as after ten. So what ``body`` changes outside
    of its carry is lost at a resume; keep it in the carry or in a ``state``. The carry must have a JSON form; it comes back as
    the type that ``body`` is annotated with. An error of ``body`` leaves the loop. An edited program goes on with the present
    epoch as long as it begins the loop with the same carry; a changed carry type may have an ``@migrate``.
    """
    if isinstance(until, bool) or (isinstance(until, int) and until < 1):
        raise UsageError(f"loop(until={until!r}): write a function of the carry, or a number of epochs, one or more")
    every_s = duration(every)
    return await _Loop(body, every_s, until, call_site(2), _carry_type(body, carry)).run(carry)


class _Loop(Generic[C]):
    def __init__(
        self, body: Callable[[C], Awaitable[C]], every_s: float | None, until: Callable[[C], bool] | int | None, site: str, type_: Any
    ) -> None:
        self._body = body
        self._every_s = every_s
        self._until = until
        self._site = site
        self._type = type_
        self._runtime = current()

    async def run(self, carry: C) -> C:
        runtime, scope = self._runtime, scope_path.get()
        ordinal = runtime.lane().new_loop(scope)
        value = self._plain(carry)
        begun = runtime.request("loop", input={"carry": _identity(carry, value)}, site=self._site)
        await begun
        lane = Lane(begun.no, above=runtime.lane())
        place = f"~loop.{ordinal}" if ordinal else "~loop"
        prefix = f"{scope}/{place}" if scope else place
        epoch = await self._turn(lane, value, None)
        while True:
            started, value = await self._epoch(lane, f"{prefix}[{epoch['epoch']}]", epoch)
            result = self._typed(value)
            if self._over(result, epoch["epoch"] + 1):
                return result
            due = None if self._every_s is None else started + self._every_s
            epoch = await self._turn(lane, value, due)

    async def _turn(self, lane: Lane, carry: JsonValue, due: float | None) -> dict[str, JsonValue]:
        """Ends an epoch and begins the next; at the start of the loop it gives the one that the journal is at."""
        token = present_lane.set(lane)
        try:
            asked = self._runtime.request("epoch", args={"carry": carry, "due": due}, site=self._site)
        finally:
            present_lane.reset(token)
        lane.next = 1
        return await asked

    async def _epoch(self, lane: Lane, scope: str, epoch: dict[str, JsonValue]) -> tuple[float, JsonValue]:
        """One epoch with all that it starts: when its body began, and the new carry."""
        lane.loops.clear()
        lane_token, scope_token = present_lane.set(lane), scope_path.set(scope)
        try:
            with outside():
                await self._wait(epoch["due"])
                started = self._runtime.now
                value = self._plain(await self._body(self._typed(epoch["carry"])))
                await finish(self._runtime, lambda handle: handle.effect.lane.within(lane))
        finally:
            present_lane.reset(lane_token)
            scope_path.reset(scope_token)
            await _clear(self._runtime, lane)
            determinism.forget(scope)
        return started, value

    async def _wait(self, due: float | None) -> None:
        seconds = 0.0 if due is None else round(due - self._runtime.now, 6)
        if seconds > 0:
            await self._runtime.request("sleep", input={"seconds": seconds}, site=self._site)

    def _over(self, carry: C, epochs: int) -> bool:
        if self._until is None or isinstance(self._until, int):
            return self._until is not None and epochs >= self._until
        said: Any = self._until(carry)
        if inspect.iscoroutine(said):
            said.close()
            raise ProgramError(f"{self._site}: until= of a loop must be a plain function: work that waits belongs into the body")
        return bool(said)

    def _plain(self, carry: C) -> JsonValue:
        try:
            return plain(carry)
        except ValueNotSerializable as error:
            raise ValueNotSerializable(f"{self._site}: the carry of a loop: {error.message}") from error

    def _typed(self, value: JsonValue) -> C:
        """Always by way of JSON, so that an epoch sees the same carry in every process."""
        try:
            return recorded(self._type, value)
        except ValidationError as error:
            raise OutputInvalid(f"{self._site}: the carry of the loop is no valid {type_name(self._type)}: {problem(error)}") from error


def _identity(carry: Any, value: JsonValue) -> JsonValue:
    """What the loop is known by: its first carry, of a model without defaults, so that a new field of the model does not make
    another loop of it."""
    return carry.model_dump(mode="json", exclude_defaults=True) if isinstance(carry, BaseModel) else value


def _carry_type(body: Callable[..., Any], carry: Any) -> Any:
    """What ``body`` says that it returns or takes, else the class of a model or dataclass, else plain JSON."""
    target: Any = inspect.unwrap(body)
    target = target if hasattr(target, "__code__") else type(target).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    returned = hints.pop("return", None)
    if returned is not None and not isinstance(returned, TypeVar):
        return returned
    taken = next(iter(hints.values()), None)
    if taken is not None and not isinstance(taken, TypeVar):
        return taken
    return type(carry) if isinstance(carry, BaseModel) or hasattr(carry, "__dataclass_fields__") else Any


async def _clear(runtime: Runtime, lane: Lane) -> None:
    """Ends what an epoch left: its tasks, then its handles, then single requests such as timers."""
    running = asyncio.get_running_loop()
    assert isinstance(running, ProgramLoop)
    own = asyncio.current_task()
    tasks = [task for task in running.live_tasks(lane) if task is not own]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)
    runtime.end_lane(lane, "the epoch ended")
