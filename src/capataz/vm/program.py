"""``@program``: an async function that can be run as a program, from outside or by another program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, get_type_hints, overload

from pydantic import ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError, ProgramLoadError
from capataz.vm.limits import Budget
from capataz.vm.values import problem, schema, type_name, typed

I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


class Program(Generic[I, T]):
    """A program. Called, it runs inline like any async function; ``run`` and ``spawn`` make it a child of its own."""

    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[..., Coroutine[Any, Any, T]], *, budget: Budget | None = None) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.budget = budget
        self.site = f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"
        self._parameter = _parameter(fn, self.site)

    @property
    def ref(self) -> str:
        """``module:name``: how a child is named on the wire and in keys. Raises ``ProgramLoadError`` for a local function."""
        if "<locals>" in self.__qualname__:
            raise ProgramLoadError(f"{self.site}: program {self.__qualname__} is local to a function; put it at a module's top level")
        return f"{self.__module__}:{self.__qualname__}"

    @overload
    def __call__(self: Program[None, T]) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, input: I, /) -> Coroutine[Any, Any, T]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        return self.fn(*args, **kwargs)

    # ---- types ---------------------------------------------------------------------------------

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.fn, include_extras=True)
        except CapatazError:
            raise
        except Exception as error:
            raise ProgramLoadError(f"{self.site}: the annotations of {self.__name__} cannot be read: {error}") from error

    @property
    def input_type(self) -> Any:
        """The annotation of its parameter; ``Any`` without one; None: it takes no input."""
        return None if self._parameter is None else self._hints.get(self._parameter.name, Any)

    @property
    def output_type(self) -> Any:
        return self._hints.get("return", Any)

    def bind(self, input: JsonValue) -> tuple[Any, ...]:
        """JSON input as the arguments of a call. Raises ``ProgramLoadError`` that says what does not fit."""
        parameter = self._parameter
        if parameter is None:
            if input not in (None, {}):
                raise ProgramLoadError(f"{self.site}: program {self.__name__} takes no input")
            return ()
        has_default = parameter.default is not inspect.Parameter.empty
        if input is None and has_default:
            return ()
        try:
            return (typed(self.input_type, input),)
        except ValidationError as error:
            if input is None:
                raise ProgramLoadError(f"{self.site}: program {self.__name__} needs an input of type {type_name(self.input_type)}") from error
            raise ProgramLoadError(f"{self.site}: wrong input of {self.__name__}: {problem(error)}") from error

    def describe(self) -> dict[str, JsonValue]:
        """Its name, what it does, and the JSON schemas of input and output; None where it has none."""
        text = inspect.getdoc(self.fn) or ""
        output = self.output_type
        return {
            "name": self.__name__,
            "ref": self.ref,
            "doc": text.strip(),
            "input": None if self.input_type is None else schema(self.input_type),
            "output": None if output is None or output is type(None) else schema(output),
        }


def _parameter(fn: Callable[..., Any], site: str) -> inspect.Parameter | None:
    if not inspect.iscoroutinefunction(fn):
        raise ProgramLoadError(f"{site}: a program is an `async def` function, {fn.__name__} is not")
    parameters = list(inspect.signature(fn).parameters.values())
    allowed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) > 1 or any(p.kind not in allowed for p in parameters):
        raise ProgramLoadError(f"{site}: program {fn.__name__} must take one input or none; put more fields into a model")
    return parameters[0] if parameters else None


@overload
def program(fn: Callable[[I], Coroutine[Any, Any, T]], /) -> Program[I, T]: ...
@overload
def program(fn: Callable[[], Coroutine[Any, Any, T]], /) -> Program[None, T]: ...
@overload
def program(*, budget: Budget | None = None) -> _Decorator: ...
def program(fn: Any = None, /, *, budget: Budget | None = None) -> Any:
    """Marks an async function as a program; the first line of its docstring is what lists show.

    ``@program`` or ``@program(budget=budget(usd=5))``. Raises ``ProgramLoadError`` when it is no async function or takes more
    than one input.
    """
    return Program(fn, budget=budget) if fn is not None else _Decorator(budget)


class _Decorator:
    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget

    @overload
    def __call__(self, fn: Callable[[I], Coroutine[Any, Any, T]], /) -> Program[I, T]: ...
    @overload
    def __call__(self, fn: Callable[[], Coroutine[Any, Any, T]], /) -> Program[None, T]: ...
    def __call__(self, fn: Any, /) -> Any:
        return Program(fn, budget=self._budget)


class LoadedProgram:
    """A program by reference; the kernel finds it, checks it and pins its source at first use."""

    def __init__(self, ref: str) -> None:
        self.ref = ref
        self.__name__ = ref.rpartition(":")[2].rpartition("/")[2].removesuffix(".py")


def load(ref: str) -> LoadedProgram:
    """A program from disk (``file.py:name``), by import (``pkg.mod:name``) or by name, for ``run`` and ``spawn``.

    A program that the checker refuses raises ``ChildInvalid`` when it is run.
    """
    if not ref.strip():
        raise ProgramLoadError("load() needs the program's file, module or name")
    return LoadedProgram(ref)
