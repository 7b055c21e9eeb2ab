"""The harness port: a harness owns the conversation and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol

from capataz.contracts.canonical import JsonValue
from capataz.contracts.journal import Usage
from capataz.contracts.sandbox import Mount, Session

AgentType = Literal["reason", "read", "general"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """0 means no limit; the run's budget applies besides."""

    max_turns: int = 40
    max_tool_calls: int = 0
    max_output_tokens: int = 8_192             # per model call: what a budget reserves
    command_timeout_s: float = 600
    wall_s: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGrant:
    """A state that an agent may read; ``writes``: edit too; ``owns``: it cannot end before the state is complete."""

    name: str
    schema: dict[str, Any]
    writes: bool
    owns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A state as an agent sees it. ``version`` 0: nobody has written it yet; the value is then its default, or None."""

    version: int
    value: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool that is not built in, as a model sees it. ``parameters``: JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """What an agent is asked. ``name`` is the scoped name that a script sees as ``call.agent``."""

    run_id: str
    key: str
    name: str
    type: AgentType
    prompt: str
    data: dict[str, JsonValue] | None
    model: str                                 # provider/id or scripted:PATH.py, aliases resolved
    output_schema: dict[str, Any] | None
    tools: tuple[str, ...] | None              # None: the type's; else a narrower list of names
    limits: AgentLimits
    write_globs: tuple[str, ...] | None = None # edit tools refuse other paths at once; None: no scope
    protected: tuple[str, ...] = ()
    guidance: Mapping[str, str] = field(default_factory=dict[str, str])
    harness: str = "agno"                      # agno | command:NAME | langgraph
    granted: tuple[str, ...] = ()              # ask_human and the like
    states: tuple[StateGrant, ...] = ()        # what state_read and state_edit work on
    own_tools: tuple[ToolSpec, ...] = ()       # of the program's own
    mcp: tuple[Mapping[str, Any], ...] = ()    # servers, as vm.mcp tells of them, with ``timeout_s``
    foreign: Mapping[str, Any] | None = None   # what an adapter told of an agent that the program brought whole


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutcome:
    """``output``: validated by the schema, or None for a text agent. ``messages``: the whole conversation."""

    text: str
    output: JsonValue
    turns: int
    messages: list[JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """What a performed model call gives back to be journaled."""

    response: JsonValue                        # the harness's own JSON form of the answer
    usage: Usage                               # tokens; ``usd`` filled by the runtime from the price book


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """A tool's answer. ``failed``: an error answer, or a command that did not exit with 0."""

    content: str
    failed: bool = False
    refused: Literal["path", "resource"] | None = None   # counts towards ForbiddenAccess, ResourceLimit
    summary: str = ""
    artifacts: tuple[str, ...] = ()
    tree: str | None = None                    # filled by the runtime: workspace tree after a call that may write


class AgentPorts(Protocol):
    """What the kernel gives a running agent. Every method journals; a resumed agent gets the recorded answers back.

    ``asyncio.CancelledError`` and ``Signal``s come out of any of them and must pass through.
    """

    async def model_call(
        self,
        *,
        turn: int,
        request: JsonValue,                    # what identifies the call: messages, tools, schema
        estimate: Usage,                       # worst case: input tokens estimated, output tokens at their limit
        perform: Callable[[], Awaitable[ModelReply]],
    ) -> ModelReply:
        """Performs once. Retries are inside ``perform`` (the harness's one policy). Raises ``BudgetExhausted``."""
        ...

    async def tool_call(
        self,
        *,
        turn: int,
        position: int,                         # place among the calls of its turn
        name: str,
        arguments: JsonValue,
        writes: bool,                          # may change workspace files: the tree after it is recorded
        perform: Callable[[], Awaitable[ToolReply]],
    ) -> ToolReply: ...

    async def accept(self, *, turn: int, value: JsonValue) -> str | None:
        """Runs the program's check of a submitted value. None: accepted. Text: what to tell the model. Raises the
        rule's own error the second time a rule is broken."""
        ...

    async def steering(self, *, turn: int) -> list[str]:
        """Messages to show before model call ``turn``; each exactly once, in order, the same again on resume."""
        ...

    async def select_context(self, *, turn: int, messages: list[JsonValue]) -> list[JsonValue] | None:
        """The program's ``context=`` selector; None: it has none."""
        ...

    def emit(self, type: str, **data: JsonValue) -> None: ...

    async def session(self, *, forwards: Mapping[int, Path] | None = None, read_only: tuple[Mount, ...] = ()) -> Session:
        """The agent's sandbox, started at first use on the workspace as the journal says it is.

        ``forwards`` (loopback port inside -> unix socket of ours) and ``read_only`` (a program's own installation) become
        part of the ``SandboxSpec``; only the first call of an agent may give them.
        """
        ...

    async def changed(self) -> str | None:
        """The workspace's tree as last recorded (for stuck detection); None without a workspace."""
        ...

    async def store(self, data: bytes, *, name: str, media_type: str) -> str:
        """Keeps bytes in the blob store and returns the uri."""
        ...

    async def ask(self, question: str, options: list[str] | None, *, place: str | None = None, context: JsonValue = None) -> str:
        """A question to a person, the same one whenever it is asked from one ``place`` (the call of ``tool_call`` that asks)."""
        ...

    async def own_tool(self, name: str, arguments: JsonValue) -> JsonValue:
        """Runs a tool of the program's own; only from within ``tool_call``'s ``perform``, which asks for the approval that the
        program wants. Raises ``StepFailed``, ``DeadlineExceeded``, ``UsageError`` (wrong arguments)."""
        ...

    async def state_read(self, name: str) -> StateView:
        """Only from within ``tool_call``'s ``perform``, as ``state_edit``. Raises ``NotFound``."""
        ...

    async def state_edit(self, name: str, *, patch: JsonValue, version: int) -> StateView:
        """A JSON merge patch on the given version. Raises ``IllegalStateEdit`` (refused by the state's rules, or based on an
        outdated version; nothing was stored) and ``NotFound``. Performed again after a crash, it finds what it wrote."""
        ...


class Harness(Protocol):
    name: str

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        """Raises ``OrchestrationError``s: AgentBlocked, AgentFailed, OutputInvalid, TurnsExhausted, AgentStuck,
        ForbiddenAccess, ResourceLimit, ContextOverflow, ProviderRejected, ProviderUnavailable, ScriptError."""
        ...


class PriceBook(Protocol):
    def price(self, model: str, usage: Usage) -> Decimal | None:
        """Dollars; None: no price known."""
        ...
