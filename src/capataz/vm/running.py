"""``run`` and ``spawn``: agents and child programs, typed by what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from pydantic import ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.coding import WorkspaceRef
from capataz.contracts.errors import OutputInvalid, ProgramError, UsageError, ValueNotSerializable
from capataz.contracts.foreign import ForeignAgent
from capataz.contracts.journal import Usage
from capataz.vm.checks import Check, accept_wire, context_wire
from capataz.vm.foreign import adapted
from capataz.vm.grants import Grants, States
from capataz.vm.handle import Handle
from capataz.vm.limits import Budget, Duration, duration
from capataz.vm.mcp import McpGrants, McpServer
from capataz.vm.migrations import recorded
from capataz.vm.program import LoadedProgram, Program
from capataz.vm.results import AgentResult
from capataz.vm.runtime import Runtime, current
from capataz.vm.scopes import own
from capataz.vm.sites import call_site
from capataz.vm.tools import OwnTools, Tool
from capataz.vm.values import is_object, plain, problem, schema, type_name, wrapped

I = TypeVar("I")  # noqa: E741
T = TypeVar("T")

AgentType = Literal["reason", "read", "general"]
OnExhausted = Literal["raise", "pause"]
Data = Mapping[str, Any] | Any
"""A dict, a pydantic model or a dataclass."""
Accept = Check | Callable[[Any], Any]
ContextSelector = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request that is not made yet: what to send, and how to read what comes back."""

    kind: str
    name: str
    input: Callable[[], JsonValue]
    args: Callable[[Runtime], JsonValue]
    decode: Callable[[JsonValue], Any]
    site: str

    def request(self) -> Any:
        runtime = current()
        return runtime.request(self.kind, name=self.name, input=self.input(), args=self.args(runtime), site=self.site)


@overload
def run(program: Program[I, T], /, *, input: I, budget: Budget | None = None, within: Duration | None = None) -> Coroutine[Any, Any, T]: ...
@overload
def run(program: Program[None, T], /, *, budget: Budget | None = None, within: Duration | None = None) -> Coroutine[Any, Any, T]: ...
@overload
def run(
    program: LoadedProgram, /, *, input: Any = None, budget: Budget | None = None, within: Duration | None = None
) -> Coroutine[Any, Any, Any]: ...
@overload
def run(
    name: str | None = None,
    /,
    *,
    prompt: str,
    output: type[T],
    data: Data | None = None,
    type: AgentType = "general",
    model: str | None = None,
    tools: Sequence[str | Tool[..., Any]] | None = None,
    max_turns: int | None = None,
    budget: Budget | None = None,
    workspace: WorkspaceRef | None = None,
    within: Duration | None = None,
    on_exhausted: OnExhausted = "raise",
    accept: Check | Callable[[T], Any] | None = None,
    context: ContextSelector | None = None,
    reads: States | None = None,
    writes: States | None = None,
    owns: States | None = None,
    harness: str | None = None,
    agent: Any = None,
    mcp: Sequence[McpServer] | None = None,
) -> Coroutine[Any, Any, T]: ...
@overload
def run(
    name: str | None = None,
    /,
    *,
    prompt: str,
    output: None = None,
    data: Data | None = None,
    type: AgentType = "general",
    model: str | None = None,
    tools: Sequence[str | Tool[..., Any]] | None = None,
    max_turns: int | None = None,
    budget: Budget | None = None,
    workspace: WorkspaceRef | None = None,
    within: Duration | None = None,
    on_exhausted: OnExhausted = "raise",
    accept: Check | Callable[[str], Any] | None = None,
    context: ContextSelector | None = None,
    reads: States | None = None,
    writes: States | None = None,
    owns: States | None = None,
    harness: str | None = None,
    agent: Any = None,
    mcp: Sequence[McpServer] | None = None,
) -> Coroutine[Any, Any, AgentResult]: ...
def run(subject: Any = None, /, **given: Any) -> Coroutine[Any, Any, Any]:
    """Runs an agent, or a program as a child, and waits for its result.

    ``run("judge", prompt=..., output=Verdict)`` gives a validated ``Verdict``, without ``output`` an ``AgentResult``;
    ``run(program, input=...)`` gives what the program returns. The result is recorded: after a crash it is not made again.
    ``reads`` and ``writes`` give an agent states to see and to edit, ``owns`` those that it must leave complete.
    Raises ``OrchestrationError``s; ``within`` raises ``DeadlineExceeded``. Cancelling the wait cancels the work.
    """
    return _wait(_ask(subject, given, call_site(2)))


async def _wait(asked: _Ask) -> Any:
    return asked.decode(await asked.request())


@overload
def spawn(
    program: Program[I, T], /, *, input: I, budget: Budget | None = None, within: Duration | None = None, daemon: bool = False
) -> Coroutine[Any, Any, Handle[T]]: ...
@overload
def spawn(
    program: Program[None, T], /, *, budget: Budget | None = None, within: Duration | None = None, daemon: bool = False
) -> Coroutine[Any, Any, Handle[T]]: ...
@overload
def spawn(
    program: LoadedProgram,
    /,
    *,
    input: Any = None,
    budget: Budget | None = None,
    within: Duration | None = None,
    daemon: bool = False,
) -> Coroutine[Any, Any, Handle[Any]]: ...
@overload
def spawn(
    name: str | None = None,
    /,
    *,
    prompt: str,
    output: type[T],
    data: Data | None = None,
    type: AgentType = "general",
    model: str | None = None,
    tools: Sequence[str | Tool[..., Any]] | None = None,
    max_turns: int | None = None,
    budget: Budget | None = None,
    workspace: WorkspaceRef | None = None,
    within: Duration | None = None,
    on_exhausted: OnExhausted = "raise",
    accept: Check | Callable[[T], Any] | None = None,
    context: ContextSelector | None = None,
    reads: States | None = None,
    writes: States | None = None,
    owns: States | None = None,
    harness: str | None = None,
    agent: Any = None,
    mcp: Sequence[McpServer] | None = None,
    daemon: bool = False,
) -> Coroutine[Any, Any, Handle[T]]: ...
@overload
def spawn(
    name: str | None = None,
    /,
    *,
    prompt: str,
    output: None = None,
    data: Data | None = None,
    type: AgentType = "general",
    model: str | None = None,
    tools: Sequence[str | Tool[..., Any]] | None = None,
    max_turns: int | None = None,
    budget: Budget | None = None,
    workspace: WorkspaceRef | None = None,
    within: Duration | None = None,
    on_exhausted: OnExhausted = "raise",
    accept: Check | Callable[[str], Any] | None = None,
    context: ContextSelector | None = None,
    reads: States | None = None,
    writes: States | None = None,
    owns: States | None = None,
    harness: str | None = None,
    agent: Any = None,
    mcp: Sequence[McpServer] | None = None,
    daemon: bool = False,
) -> Coroutine[Any, Any, Handle[AgentResult]]: ...
def spawn(subject: Any = None, /, *, daemon: bool = False, **given: Any) -> Coroutine[Any, Any, Handle[Any]]:
    """Starts what ``run`` would run and returns its ``Handle`` at once.

    The program's end waits for it and raises its error if nobody awaited it; ``daemon=True`` lets the program end without it:
    it is cancelled then.
    """
    return _start(_ask(subject, given, call_site(2)), daemon)


async def _start(asked: _Ask, daemon: bool) -> Handle[Any]:
    handle = Handle(asked.request(), asked.decode, name=asked.name, daemon=daemon)
    current().handles.append(handle)
    own(handle)
    return handle


# ---- what is asked -----------------------------------------------------------------------------


def _ask(subject: Any, given: dict[str, Any], site: str) -> _Ask:
    if isinstance(subject, (Program, LoadedProgram)):
        return _child(subject, site, **given)
    if subject is not None and not isinstance(subject, str):
        raise TypeError(f"run() takes an agent's name or a @program, not {subject!r}")
    return _agent(subject or "", site, **given)


def _child(
    program: Program[Any, Any] | LoadedProgram,
    site: str,
    *,
    input: Any = None,
    budget: Budget | None = None,
    within: Duration | None = None,
) -> _Ask:
    wire = {"program": program.ref, "input": _input(program, input, site)}
    loaded = isinstance(program, LoadedProgram)
    args = {"budget": budget.limits() if budget else None, "within_s": duration(within), "loaded": loaded}
    output = program.output_type if isinstance(program, Program) else Any
    return _Ask("child", program.__name__, lambda: wire, lambda _: args, lambda value: _typed(output, value, site), site)


def _input(program: Program[Any, Any] | LoadedProgram, input: Any, site: str) -> JsonValue:
    """JSON of a child's input, checked here so that a wrong one is an error at its own line."""
    value = plain(input)
    if isinstance(program, Program):
        try:
            program.bind(value)
        except ProgramError as error:
            raise type(error)(f"{site}: {error.message}", site=site) from error
    return value


def _typed(output: Any, value: JsonValue, site: str) -> Any:
    if output is None or output is type(None):
        return None
    try:
        return recorded(output, value)
    except ValidationError as error:
        raise OutputInvalid(f"{site}: the recorded result is no valid {type_name(output)}: {problem(error)}") from error


def _agent(
    name: str,
    site: str,
    *,
    prompt: str,
    output: Any = None,
    data: Any = None,
    type: AgentType = "general",
    model: str | None = None,
    tools: Sequence[str | Tool[..., Any]] | None = None,
    max_turns: int | None = None,
    budget: Budget | None = None,
    workspace: WorkspaceRef | None = None,
    within: Duration | None = None,
    on_exhausted: OnExhausted = "raise",
    accept: Accept | None = None,
    context: ContextSelector | None = None,
    reads: States | None = None,
    writes: States | None = None,
    owns: States | None = None,
    harness: str | None = None,
    agent: Any = None,
    mcp: Sequence[McpServer] | None = None,
) -> _Ask:
    if type not in ("reason", "read", "general"):
        raise UsageError(f"{site}: type={type!r}: an agent is reason, read or general")
    if on_exhausted not in ("raise", "pause"):
        raise UsageError(f"{site}: on_exhausted={on_exhausted!r}: write raise or pause")
    if max_turns is not None and (not isinstance(max_turns, int) or max_turns < 1):  # pyright: ignore
        raise UsageError(f"{site}: max_turns={max_turns!r}: write a whole number, one or more")
    if not isinstance(prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"prompt must be text, not {prompt!r}")
    brought = None if agent is None else adapted(agent, site)
    if brought is not None:
        _check_brought(brought, site, harness, tools, reads, writes, owns, workspace, mcp)
        output, model, harness = output or brought.output, model or brought.model, brought.harness
        tools = [] if tools is None else tools
    output_schema, wrap = _output_schema(output)
    grants = Grants.of(site, reads, writes, owns, harness)
    own = OwnTools(site, tools, brought)
    servers = McpGrants(site, mcp, harness)
    if own.own and harness is not None and harness.startswith("command:"):
        raise UsageError(f"{site}: an agent of harness {harness} has no tools of the program; use the agno harness for them")

    def input() -> JsonValue:
        return {
            "prompt": prompt,
            "data": _data(data, site),
            "type": type,
            "model": model,
            "output_schema": output_schema,
            "tools": own.names,
            "workspace": plain(workspace),
            **grants.input(),
            **own.input(),
            **servers.input(),
            **({} if brought is None else {"foreign": brought.told}),
            "harness": harness,
        }

    def args(runtime: Runtime) -> JsonValue:
        return {
            "max_turns": max_turns,
            "budget": budget.limits() if budget else None,
            "within_s": duration(within),
            "on_exhausted": on_exhausted,
            "accept": accept_wire(runtime, accept, output, wrap=wrap),
            "context": context_wire(runtime, context),
            "states": grants.args(runtime),
            **own.args(runtime),
            **({"mcp_tools": guarded} if (guarded := servers.args(runtime)) else {}),
            "text": output is None,
        }

    def decode(value: JsonValue) -> Any:
        return _agent_result(value) if output is None else _typed(output, _unwrap(value["output"], wrap), site)

    return _Ask("agent", name, input, args, decode, site)


def _check_brought(brought: ForeignAgent, site: str, harness: Any, *unused: Any) -> None:
    """An agent that is brought whole has its own loop, or at least its own tools."""
    if harness is not None:
        raise UsageError(f"{site}: agent= brings its own harness; leave harness= out")
    if brought.harness == "langgraph" and any(given is not None for given in unused):
        raise UsageError(f"{site}: a graph uses what its nodes use; leave out tools=, reads=, writes=, owns=, workspace= and mcp=")


def _output_schema(output: Any) -> tuple[dict[str, Any] | None, bool]:
    """The schema that an agent submits, and whether a plain value is wrapped in an object for it."""
    if output is None:
        return None, False
    made = schema(output)
    return (made, False) if is_object(made) else (wrapped(made), True)


def _unwrap(value: JsonValue, wrap: bool) -> JsonValue:
    return value["value"] if wrap and isinstance(value, dict) and "value" in value else value


def _data(data: Any, site: str) -> JsonValue:
    value = plain(data)
    if value is not None and not isinstance(value, dict):
        raise ValueNotSerializable(f"{site}: data= must be a dict, a model or a dataclass, not {data.__class__.__name__}")
    return value


def _agent_result(value: JsonValue) -> AgentResult:
    return AgentResult(
        text=value.get("text") or "",
        turns=value.get("turns") or 0,
        usage=Usage.from_json(value.get("usage") or {}),
        transcript=value.get("transcript"),
    )
