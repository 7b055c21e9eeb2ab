"""``@tool``: a function of the program that agents may call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticUserError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError, ProgramLoadError, UsageError
from capataz.contracts.foreign import ForeignAgent, ForeignTool
from capataz.vm.limits import Duration, duration
from capataz.vm.runtime import Runtime
from capataz.vm.values import problem

P = ParamSpec("P")
T = TypeVar("T")

Policy = Callable[[dict[str, Any]], "bool | Literal['never', 'always']"]
Approval = Literal["never", "always"] | Policy
"""Whether a person is asked before a call: never, always, or what a pure function of the call's arguments says."""


def asks(approval: Approval, arguments: dict[str, Any], whose: str) -> bool:
    """Whether a person is asked before a call. Raises ``UsageError`` for a function that does not say."""
    says = approval(arguments) if callable(approval) else approval
    if says in (True, False, "never", "always"):
        return says in (True, "always")
    raise UsageError(f"{whose}: the approval function gave {says!r}; it gives True, False, always or never")


class Tool(Generic[P, T]):
    """A tool. Called, it is the function that it was made from."""

    __name__: str
    __qualname__: str

    def __init__(self, fn: Callable[P, T], *, approval: Approval, idempotent: bool, timeout_s: float | None) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.approval: Approval = approval
        self.idempotent = idempotent
        self.timeout_s = timeout_s
        self.site = f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"
        self._check()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.fn(*args, **kwargs)

    def _check(self) -> None:
        """What can be said without reading annotations, which may name what is defined later."""
        if self.approval not in ("never", "always") and not callable(self.approval):
            raise ProgramLoadError(f"{self.site}: @tool(approval={self.approval!r}): write never, always or a function of the arguments")
        if getattr(self.fn, "__closure__", None):
            hidden = ", ".join(self.fn.__code__.co_freevars)
            raise ProgramLoadError(f"{self.site}: tool {self.__name__} uses {hidden} from around it, which the journal cannot see; put it at a module's top level")
        if not inspect.getdoc(self.fn):
            raise ProgramLoadError(f"{self.site}: tool {self.__name__} needs a docstring: it tells the agent what the tool does")
        for parameter in inspect.signature(self.fn).parameters.values():
            if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
                raise ProgramLoadError(f"{self.site}: tool {self.__name__}: an agent gives arguments by name; {parameter} has none")
            if parameter.annotation is inspect.Parameter.empty:
                raise ProgramLoadError(f"{self.site}: tool {self.__name__}: parameter {parameter.name} needs a type")

    @property
    def description(self) -> str:
        return inspect.getdoc(self.fn) or ""

    @functools.cached_property
    def _arguments(self) -> type[BaseModel]:
        try:
            hints = get_type_hints(self.fn, include_extras=True)
            fields: dict[str, Any] = {
                p.name: (hints[p.name], ... if p.default is inspect.Parameter.empty else p.default)
                for p in inspect.signature(self.fn).parameters.values()
            }
            return create_model(self.__name__, __config__=ConfigDict(extra="forbid"), **fields)
        except CapatazError:
            raise
        except (PydanticUserError, NameError, TypeError) as error:
            raise ProgramLoadError(f"{self.site}: the parameters of tool {self.__name__} cannot be read: {str(error).splitlines()[0]}") from error

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return untitled(self._arguments.model_json_schema())

    def _given(self, arguments: Mapping[str, Any]) -> BaseModel:
        try:
            return self._arguments.model_validate(arguments)
        except ValidationError as error:
            raise UsageError(problem(error)) from None

    def gate(self, arguments: dict[str, Any]) -> bool:
        """Whether a person is asked before a call with these JSON arguments; nobody is for those that do not fit."""
        try:
            self._given(arguments)
        except UsageError:
            return False
        return asks(self.approval, arguments, f"{self.site}: tool {self.__name__}")

    def invoke(self, arguments: Mapping[str, Any]) -> Any:
        """Calls the function with JSON arguments. Raises ``UsageError`` for those that do not fit."""
        given = self._given(arguments)
        return self.fn(**{name: getattr(given, name) for name in type(given).model_fields})  # pyright: ignore[reportCallIssue]


def untitled(schema: Any) -> Any:
    """Without the titles that pydantic invents; a property that is named ``title`` stays."""
    if isinstance(schema, dict):
        return {k: untitled(v) for k, v in schema.items() if k != "title" or not isinstance(v, str)}  # pyright: ignore[reportUnknownVariableType]
    return [untitled(item) for item in schema] if isinstance(schema, list) else schema  # pyright: ignore[reportUnknownVariableType]


class _Decorator:
    def __init__(self, approval: Approval, idempotent: bool, timeout: Duration | None) -> None:
        self._options: dict[str, Any] = {"approval": approval, "idempotent": idempotent, "timeout_s": duration(timeout)}

    def __call__(self, fn: Callable[P, T], /) -> Tool[P, T]:
        return Tool(fn, **self._options)


@overload
def tool(fn: Callable[P, T], /) -> Tool[P, T]: ...
@overload
def tool(*, approval: Approval = "never", idempotent: bool = True, timeout: Duration | None = None) -> _Decorator: ...
def tool(fn: Any = None, /, *, approval: Approval = "never", idempotent: bool = True, timeout: Duration | None = None) -> Any:
    """Makes a typed function, async or not, a tool for agents: ``run(..., tools=[fn])``.

    Its docstring and its parameters are what the agent sees. A call runs like a step: once, in a process of its own in the
    worker, its result journaled; an exception goes to the agent as one line. With ``approval`` the run parks on a question that
    shows the arguments, and a declined call goes back to the agent. ``idempotent=False``: a call that was under way when the
    worker died waits for ``capataz resolve``; otherwise it is made again, with the same ``CAPATAZ_CALL_KEY`` in its environment.
    Raises ``ProgramLoadError`` for a function that cannot be a tool.
    """
    decorate = _Decorator(approval, idempotent, timeout)
    return decorate if fn is None else decorate(fn)


class OwnTools:
    """The tools of a program's own that ``tools=`` gives to one agent, and the names of built-in ones among them."""

    def __init__(self, site: str, given: Sequence[str | Tool[..., Any]] | None, brought: ForeignAgent | None = None) -> None:
        """Raises ``UsageError`` for what is no tool, and for two of one name."""
        if isinstance(given, str):
            raise UsageError(f"{site}: tools={given!r}: write a list of names and @tool functions")
        entries = list(given or ())
        for entry in entries:
            if not isinstance(entry, (str, Tool)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{site}: tools= takes names of tools and functions with @tool, not {entry!r}")
        self.own = [entry for entry in entries if isinstance(entry, Tool)]
        named = [entry for entry in entries if isinstance(entry, str)]
        # A name narrows what the agent's type offers; functions alone are added to it.
        self.names: list[str] | None = None if given is None or (self.own and not named) else named
        self._brought = brought.tools if brought is not None else ()
        own = [tool.__name__ for tool in self.own] + [tool.name for tool in self._brought]
        twice = sorted({name for name in own if own.count(name) > 1})
        if twice:
            raise UsageError(f"{site}: two tools are named {', '.join(twice)}; rename one of them")

    def input(self) -> dict[str, JsonValue]:
        """What is part of the agent's key."""
        shown: list[JsonValue] = [*map(_shown, self.own), *map(_brought_shown, self._brought)]
        return {"own_tools": shown} if shown else {}

    def args(self, runtime: Runtime) -> dict[str, JsonValue]:
        """What the kernel needs besides: how to call each, and what to do before."""
        wire: list[JsonValue] = [_wire(tool, runtime) for tool in self.own]
        wire += [_brought_wire(tool, runtime) for tool in self._brought]
        return {"own_tools": wire} if wire else {}


def _shown(tool: Tool[..., Any]) -> dict[str, JsonValue]:
    return {"name": tool.__name__, "description": tool.description, "parameters": tool.schema}


def _wire(tool: Tool[..., Any], runtime: Runtime) -> dict[str, JsonValue]:
    gate = None if tool.approval == "never" else runtime.register_callback(tool.gate)
    return {
        "name": tool.__name__, "call": runtime.register_callback(tool.invoke), "gate": gate,
        "idempotent": tool.idempotent, "timeout_s": tool.timeout_s,
    }


def _brought_shown(tool: ForeignTool) -> dict[str, JsonValue]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _brought_wire(tool: ForeignTool, runtime: Runtime) -> dict[str, JsonValue]:
    gate = runtime.register_callback(lambda _: True) if tool.approval else None
    return {"name": tool.name, "call": runtime.register_callback(tool.invoke), "gate": gate, "idempotent": True, "timeout_s": None}
