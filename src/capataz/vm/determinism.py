"""Time and chance inside a program: recorded time, and generators seeded by the run and the scope.

The functions are replaced in their modules, once, in a program process; each looks at ``guard.on()``, so that a step's child,
where the guard is off, has the real ones without undoing anything.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

from capataz.vm import guard
from capataz.vm.runtime import Runtime, current, scope_path

_forced: ContextVar[random.Random | None] = ContextVar("capataz_generator", default=None)
_generators: dict[str, random.Random] = {}


def _seeded(seed: str, place: str) -> random.Random:
    material = hashlib.sha256(f"{seed}\0{place}".encode("utf-8", "surrogatepass")).digest()
    return random.Random(int.from_bytes(material, "big"))


def generator() -> random.Random:
    """The present scope's generator."""
    forced = _forced.get()
    if forced is not None:
        return forced
    place = scope_path.get()
    found = _generators.get(place)
    if found is None:
        found = _generators[place] = _seeded(current().seed, place)
    return found


def forget(place: str) -> None:
    """Drops the generators of a scope that is over, and of all below it."""
    for name in [name for name in _generators if name == place or name.startswith(f"{place}/")]:
        del _generators[name]


def isolate(runtime: Runtime, place: str) -> None:
    """Gives the present context a generator of its own: a callback must not use up the program's numbers."""
    _forced.set(_seeded(runtime.seed, f"callback {place}"))


def urandom(size: int, /) -> bytes:
    return generator().randbytes(size)


def install() -> None:
    """Replaces clocks and sources of chance in this process. Once."""
    _install_clocks()
    _install_datetime()
    _install_chance()


def _either(recorded: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return recorded(*args, **kwargs) if guard.on() else real(*args, **kwargs)

    chosen.__name__ = chosen.__qualname__ = getattr(real, "__name__", "chosen")
    chosen.__module__ = getattr(real, "__module__", None) or "time"
    chosen.__doc__ = real.__doc__
    return chosen


def _now() -> float:
    return current().now


def _elapsed() -> float:
    runtime = current()
    return runtime.now - runtime.started


def _ns(clock: Callable[[], float]) -> Callable[[], int]:
    return lambda: round(clock() * 1e6) * 1000


def _install_clocks() -> None:
    clocks: dict[str, Callable[..., Any]] = {"time": _now, "time_ns": _ns(_now)}
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        clocks |= {name: _elapsed, f"{name}_ns": _ns(_elapsed)}
    for name, recorded in clocks.items():
        setattr(time, name, _either(recorded, getattr(time, name)))
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _either(_with_now(getattr(time, name)), getattr(time, name)))
    time.asctime = _either(_with_tuple(time.asctime), time.asctime)
    real = time.strftime
    time.strftime = _either(lambda format, t=None: real(format, time.localtime() if t is None else t), real)


def _with_now(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seconds=None: real(_now() if seconds is None else seconds)


def _with_tuple(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda t=None: real(time.localtime() if t is None else t)


def _install_datetime() -> None:
    """``datetime.now`` and ``utcnow`` read the system's clock in C (``today`` asks ``time.time``).

    The class must stay the same object, since pydantic, annotations and earlier imports hold it, so the two entries of its
    dictionary are replaced. A subclass instead would break ``type(x) is datetime`` and every earlier ``from`` import.
    """
    cls = datetime.datetime
    table = cast("dict[str, Any]", gc.get_referents(cls.__dict__)[0])
    real_now, real_utcnow = cls.now, getattr(cls, "utcnow", None)

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        if not guard.on():
            return real_now(tz) if cls is datetime.datetime else cls.fromtimestamp(time.time(), tz)
        return cls.fromtimestamp(_now(), tz)

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        if not guard.on() and real_utcnow is not None and cls is datetime.datetime:
            return real_utcnow()
        seconds = _now() if guard.on() else time.time()
        return cls.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None)

    table["now"] = classmethod(now)
    if real_utcnow is not None:
        table["utcnow"] = classmethod(utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _install_chance() -> None:
    os.urandom = _either(urandom, os.urandom)
    if hasattr(os, "getrandom"):
        os.getrandom = _either(lambda size, flags=0: urandom(size), os.getrandom)
    random._urandom = os.urandom  # type: ignore[attr-defined]  # what SystemRandom, hence secrets, reads
    real_seed = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and guard.on():
            a = generator().getrandbits(256)
        real_seed(self, a, version)

    random.Random.seed = seed
    for name in _module_functions():
        setattr(random, name, _scoped(name, getattr(random, name)))
    uuid._generate_time_safe = None  # type: ignore[attr-defined]  # C code that reads the real clock
    uuid.getnode = _either(lambda: generator().getrandbits(48) | (1 << 40), uuid.getnode)


def _module_functions() -> list[str]:
    """Functions of the module ``random`` that are methods of its hidden generator."""
    return [name for name in random.__all__ if isinstance(getattr(getattr(random, name), "__self__", None), random.Random)]


def _scoped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    return _either(lambda *args, **kwargs: getattr(generator(), name)(*args, **kwargs), real)


def leave() -> None:
    """In a step's child: the inherited generators must not repeat themselves in every child."""
    random.seed()
