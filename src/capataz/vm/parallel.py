"""Bounded parallel maps and races."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar, overload

from capataz.contracts.errors import ProgramError, UsageError
from capataz.vm.handle import Handle
from capataz.vm.results import Failure
from capataz.vm.runtime import scope_path
from capataz.vm.scopes import hidden, item_key
from capataz.vm.values import plain

A = TypeVar("A")
T = TypeVar("T")


@overload
async def fan_out(
    items: Iterable[A],
    fn: Callable[[A], Awaitable[T]],
    *,
    limit: int | None = None,
    key: Callable[[A], str] | None = None,
    on_error: Literal["raise"] = "raise",
) -> list[T]: ...
@overload
async def fan_out(
    items: Iterable[A],
    fn: Callable[[A], Awaitable[T]],
    *,
    limit: int | None = None,
    key: Callable[[A], str] | None = None,
    on_error: Literal["collect"],
) -> list[T | Failure]: ...
async def fan_out(
    items: Iterable[A],
    fn: Callable[[A], Awaitable[T]],
    *,
    limit: int | None = None,
    key: Callable[[A], str] | None = None,
    on_error: Literal["raise", "collect"] = "raise",
) -> list[Any]:
    """``fn`` over ``items``, at most ``limit`` at a time (None: all), results in item order.

    Each item has a scope of its own, named by ``key(item)`` (default: the item's digest), so that adding, removing or
    reordering items leaves the others' recorded effects in use. ``"raise"``: the first error cancels the rest and is raised;
    ``"collect"``: an item that raised gives a ``Failure`` (mistakes in the program are raised all the same).
    """
    if limit is not None and limit < 1:
        raise UsageError(f"fan_out(limit={limit!r}): write 1 or more, or None for no limit")
    if on_error not in ("raise", "collect"):
        raise UsageError(f"fan_out(on_error={on_error!r}): write raise or collect")
    label = getattr(fn, "__name__", "item").strip("<>")
    map_ = _Map(list(items), fn, label, key, collect=on_error == "collect")
    return await map_.run(limit)


class _Map:
    def __init__(self, items: list[Any], fn: Callable[[Any], Awaitable[Any]], label: str, key: Any, *, collect: bool) -> None:
        self._fn = fn
        self._collect = collect
        self._keys = [str(key(item)) if key is not None else item_key(plain(item)) for item in items]
        self._scopes = [hidden(label, name) for name in _with_ordinals(self._keys)]
        self._results: list[Any] = [None] * len(items)
        self._left = iter(enumerate(items))
        self._error: BaseException | None = None

    async def run(self, limit: int | None) -> list[Any]:
        count = len(self._results) if limit is None else min(limit, len(self._results))
        lanes = [asyncio.create_task(self._lane()) for _ in range(count)]
        try:
            for done in asyncio.as_completed(lanes):
                await done
        except BaseException:
            await _stop(lanes)
            raise
        return self._results

    async def _lane(self) -> None:
        """Takes the next item as soon as it is free. Its scope ends with the item."""
        for index, item in self._left:
            path = scope_path.get()
            token = scope_path.set(f"{path}/{self._scopes[index]}" if path else self._scopes[index])
            try:
                self._results[index] = await self._fn(item)
            except ProgramError:
                raise
            except Exception as error:
                if not self._collect:
                    raise
                self._results[index] = Failure(self._keys[index], error)
            finally:
                scope_path.reset(token)


def _with_ordinals(keys: list[str]) -> list[str]:
    """Equal keys get an ordinal: ``k``, ``k.1``, ``k.2``."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for name in keys:
        names.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


async def _stop(tasks: list[Any]) -> None:
    """Cancels tasks and waits until they have ended, however."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def race(*entries: Awaitable[T]) -> T:
    """The result of the first to finish; the others are cancelled, and awaited, before it is returned.

    Takes handles, coroutines and tasks. When the first to finish raised, its error is raised.
    """
    if not entries:
        raise UsageError("race() needs at least one entry")
    order: list[Any] = []
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(_result(entry)) for entry in entries]
    for task in tasks:
        task.add_done_callback(order.append)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        winner = order[0] if order else None
        for entry, task in zip(entries, tasks, strict=True):
            if task is not winner and isinstance(entry, Handle):
                entry.abandon("another one won the race")
        await _stop([task for task in tasks if task is not winner])
    return order[0].result()


async def _result(entry: Awaitable[T]) -> T:
    return await entry

