"""Steps, time, and what a run shows: ``step``, ``sleep``, ``now``, ``checkpoint``, ``artifact``."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar, TypeVarTuple, overload

from pydantic import ValidationError

from capataz.contracts.canonical import bytes_to_json, canonical_bytes
from capataz.contracts.errors import OutputInvalid, ProgramLoadError, StepFailed, UsageError
from capataz.vm.limits import Duration, duration
from capataz.vm.migrations import recorded
from capataz.vm.results import moment
from capataz.vm.runtime import current
from capataz.vm.sites import call_site
from capataz.vm.steperrors import builtin_error
from capataz.vm.values import plain, problem, type_name

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@overload
async def step(
    name: str,
    fn: Callable[[*Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    idempotent: bool = True,
    timeout: Duration | None = None,  # noqa: ASYNC109
) -> T: ...
@overload
async def step(
    name: str,
    fn: Callable[[*Ts], T],
    *args: *Ts,
    idempotent: bool = True,
    timeout: Duration | None = None,  # noqa: ASYNC109
) -> T: ...
async def step(
    name: str, fn: Callable[..., Any], *args: Any, idempotent: bool = True, timeout: Duration | None = None  # noqa: ASYNC109
) -> Any:
    """Runs ``fn(*args)`` once, outside the program, in a process of its own in the worker; its result is recorded.

    There it may use files, sockets, threads and processes; all its processes end with it. Arguments and result are JSON
    values, models or dataclasses. Raises the built-in exception that ``fn`` raised, else ``StepFailed`` with the exception's
    name in ``details["type"]``; ``DeadlineExceeded`` after ``timeout``. A crash while it ran: it runs again, unless
    ``idempotent=False``: then ``EffectInDoubt``.
    """
    site = call_site(2)
    runtime = current()
    input = {"fn": _function_name(fn, site), "args": plain(list(args)), "kwargs": {}}
    limits = {"idempotent": idempotent, "timeout_s": duration(timeout)}
    effect = runtime.request("step", name=name, input=input, args=limits, site=site)
    runtime.steps[effect.no] = functools.partial(fn, *args)
    try:
        value = await effect
    except StepFailed as error:
        same = builtin_error(error)
        if same is None:
            raise
        raise same from error
    return _result(fn, value, site)


def _function_name(fn: Any, site: str) -> str:
    """``module:qualname``. The journal knows a step by it, so what it names must not hide other inputs."""
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, functools.partial) or not (owner is None or inspect.isclass(owner) or inspect.ismodule(owner)):
        raise ProgramLoadError(f"{site}: step() needs a plain function; give what it works on as arguments: step(name, fn, *args)")
    if not callable(fn) or not hasattr(fn, "__qualname__"):
        raise ProgramLoadError(f"{site}: step() needs a function, not {fn!r}")
    if getattr(fn, "__closure__", None):
        hidden = ", ".join(fn.__code__.co_freevars)
        raise ProgramLoadError(
            f"{site}: {fn.__qualname__} uses {hidden} from around it, which the journal cannot see; give it as an argument: "
            "step(name, fn, *args)"
        )
    return f"{fn.__module__}:{fn.__qualname__}"


def _result(fn: Any, value: Any, site: str) -> Any:
    type_ = _return_type(fn)
    if type_ is None:
        return value
    try:
        return recorded(type_, value)
    except ValidationError as error:
        raise OutputInvalid(f"{site}: the recorded result of {fn.__qualname__} is no valid {type_name(type_)}: {problem(error)}") from error


def _return_type(fn: Any) -> Any:
    """The return annotation of a step's function; None when it has none that can be read."""
    try:
        type_ = typing.get_type_hints(fn, include_extras=True).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return None if type_ in (None, type(None), Any) else type_


async def sleep(seconds: Duration) -> None:
    """Durable sleep: it survives restarts, and a long one holds no process. Takes seconds, a ``timedelta`` or ``"2h"``."""
    if seconds == 0:
        return
    await current().request("sleep", input={"seconds": duration(seconds)}, site=call_site(2))


async def now() -> datetime:
    """The time, recorded: a resumed run gets the same one again. UTC."""
    return moment(await current().request("now", site=call_site(2)))


async def checkpoint(message: str, data: Any = None) -> None:
    """A notice of fixed shape to whoever watches the run. Waits for nobody."""
    await current().request("checkpoint", input={"message": message, "data": plain(data)}, site=call_site(2))


async def artifact(name: str, data: Any, media_type: str | None = None) -> str:
    """Publishes a file of the run and returns its uri. ``data``: bytes, text, or anything with a JSON form."""
    if not name.strip():
        raise UsageError("artifact() needs a name")
    content, guessed = _content(data)
    input = {"name": name, "data": bytes_to_json(content), "media_type": media_type or guessed}
    stored = await current().request("artifact", input=input, site=call_site(2))
    return str(stored["uri"]) if isinstance(stored, dict) else str(stored)


def _content(data: Any) -> tuple[bytes, str]:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), "application/octet-stream"
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape"), "text/plain"
    return canonical_bytes(data), "application/json"
