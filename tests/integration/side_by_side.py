"""Jobs that a test file needs, done two at a time: a command line mostly waits for its sandboxes and for git."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import pytest

T = TypeVar("T")
AT_ONCE = 2


class SideBySide(Generic[T]):
    """``results[name]`` waits for the job of that name. Only jobs of the tests that were chosen are done."""

    def __init__(self, names: Iterable[str], work: Callable[[str], T]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures: dict[str, Future[T]] = {name: self._pool.submit(work, name) for name in dict.fromkeys(names)}

    def __getitem__(self, name: str) -> T:
        return self._futures[name].result()

    def wait(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def chosen(request: pytest.FixtureRequest, argument: str) -> list[str]:
    """The values of a parameter in the tests of this file that will run."""
    items = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    return [item.callspec.params[argument] for item in items if argument in getattr(getattr(item, "callspec", None), "params", {})]
