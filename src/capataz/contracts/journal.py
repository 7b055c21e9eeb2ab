"""The journal port: what the VM needs of a store. One conformance suite runs against every implementation.

All writes of a run go through ``Journal.commit``: one batch, one transaction, fenced by the lease's epoch. Other
processes (a person who answers, cancels, notifies) never write ``effects`` or ``events``: they leave rows in ``asks``
and ``inbox`` and make the run ready; the run's one writer turns them into deliveries and events.

Times are seconds since the Unix epoch (float, UTC). Money is ``Decimal`` dollars.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, Protocol

from capataz.contracts.canonical import JsonValue

RunState = Literal["queued", "running", "parked", "completed", "failed", "cancelled"]
EffectStatus = Literal["requested", "ok", "error", "cancelled", "doubt"]
FINAL_STATES = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an effect used. ``cached_tokens`` are part of ``input_tokens``."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd: Decimal = Decimal(0)
    model_calls: int = 0
    repeated_model_calls: int = 0
    tool_calls: int = 0
    turns: int = 0
    agents: int = 0
    sandbox_s: float = 0.0
    wall_s: float = 0.0
    download_bytes: int = 0
    artifact_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.__slots__})

    def to_json(self) -> dict[str, Any]:
        """``usd`` as decimal text."""
        return {**{name: getattr(self, name) for name in Usage.__slots__}, "usd": str(self.usd)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Usage:
        return _usage_of(tuple(data.items()))


_USAGE_FIELDS = frozenset(Usage.__slots__)


@lru_cache(maxsize=1024)
def _usage_of(fields: tuple[tuple[str, Any], ...]) -> Usage:
    """Of ten thousand effects most used the same, and a usage never changes."""
    known = {name: value for name, value in fields if name in _USAGE_FIELDS}
    known["usd"] = Decimal(known.get("usd", 0))
    return Usage(**known)


# ---- runs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    run_id: str
    program: str                        # what the person wrote: name, pkg.mod:name or file.py:name
    source_digest: str                  # closure in ``sources``
    input: JsonValue
    options: JsonValue                  # everything that ``resume`` must reuse: models, limits, approval mode, policy
    parent_run: str | None = None
    tenant: str = "local"
    created_at: float
    repository: str | None = None       # for listing and reports


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    run_id: str
    program: str
    state: RunState
    outcome: str | None                 # promoted | report | failed | declined | cancelled | completed | None
    reason: JsonValue                   # {"code", "message", "round", "task"} or None
    input: JsonValue
    options: JsonValue
    result: JsonValue
    source_digest: str
    generation: int
    parent_run: str | None
    tenant: str
    repository: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    ready_at: float | None              # parked: when to wake by itself; None: only by a message or an answer
    waiting: JsonValue                  # parked: list of {"on": "ask|sleep|state|budget|paused|message", ...}
    last_event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """Fields to change; ``None`` leaves a field as it is (``clear`` names fields to set to NULL).

    ``ready_at`` and ``waiting`` belong to the state: whoever sets a state sets both, to what is given or to NULL. A park that
    races with an answer or a post leaves the run ready at once, if what came since the claim is not yet part of the journal.
    """

    state: RunState | None = None
    outcome: str | None = None
    reason: JsonValue = None
    result: JsonValue = None
    options: JsonValue = None
    source_digest: str | None = None
    generation: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    ready_at: float | None = None
    waiting: JsonValue = None
    clear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who may hold a lease. ``boot`` is the machine's boot id: a pid means something only within it."""

    worker: str
    boot: str
    pid: int
    pid_start: int                      # the process's start time in clock ticks: a recycled pid differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    run_id: str
    epoch: int                          # fencing token; grows by one at each claim
    holder: Holder
    expires_at: float                   # by the database's clock


# ---- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRequested:
    """A row at its request. ``key`` is unique in (run, generation)."""

    key: str                            # "SCOPE/KIND:NAME#DIGEST16.ORDINAL"; sub-effects: "PARENT>KIND:NAME#DIGEST16.ORDINAL"
    parent: str | None                  # the agent that a sub-effect belongs to, or the child program that requested it
    scope: str                          # "a/b"; parts that begin with "~" (fan_out items) are left out of agents' names
    kind: str                           # agent step ask tell artifact checkpoint sleep now child coding.* | model tool accept steering compact
    name: str
    input_digest: str                   # 64 hex digits
    ordinal: int
    request_no: int | None              # order of requests in its program (parent None: the run's own); None for agents' sub-effects
    input: JsonValue
    started_at: float
    reused_from: int | None = None      # the generation whose result this row takes over
    tree: str | None = None             # workspace tree at its start


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCompleted:
    """The one update that a row ever gets."""

    key: str
    status: EffectStatus
    delivery_no: int | None             # order of deliveries to the program; None for sub-effects
    result: JsonValue = None
    error: JsonValue = None
    usage: Usage = field(default_factory=Usage)
    ended_at: float
    tree: str | None = None             # workspace tree at its end
    repeated: bool = False              # an earlier attempt was in flight at a crash, so it was made again


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """A row as read back."""

    generation: int
    key: str
    parent: str | None
    scope: str
    kind: str
    name: str
    input_digest: str
    ordinal: int
    request_no: int | None
    delivery_no: int | None
    status: EffectStatus
    input: JsonValue
    result: JsonValue
    error: JsonValue
    usage: Usage
    started_at: float
    ended_at: float | None
    repeated: bool
    reused_from: int | None
    start_tree: str | None
    end_tree: str | None
    worker: str
    epoch: int


# ---- events, asks, inbox, timers, accounts ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    seq: int                            # per run, from 1, no gaps: given by the run's one writer
    type: str                           # one of ``contracts.events.TYPES``
    at: float
    effect: str | None
    data: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAsk:
    ask_id: str
    effect: str
    kind: str                           # approval | choice | text | model
    question: str
    options: JsonValue                  # list of values for choice (approval: ["approve", "decline"])
    schema: JsonValue                   # JSON schema for a Model answer
    context: JsonValue                  # what the person should see
    approvers: tuple[str, ...]
    channel: str | None
    risk: str | None
    binding: str | None                 # digest that the decision is bound to (the envelope's)
    opened_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRecord:
    ask_id: str
    run_id: str
    effect: str
    kind: str
    question: str
    options: JsonValue
    schema: JsonValue
    context: JsonValue
    approvers: tuple[str, ...]
    channel: str | None
    risk: str | None
    binding: str | None
    opened_at: float
    expires_at: float | None
    answer: JsonValue                   # None while open
    answered_by: str | None
    answered_at: float | None
    answer_channel: str | None
    note: str | None
    closed: str | None                  # why an unanswered ask is no longer open: expired | cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    seq: int                            # per run, given by the store, grows
    kind: Literal["message", "cancel", "pause", "resume", "topup", "resolve"]
    target: str | None                  # agent name or effect key; None: the run itself
    body: JsonValue
    sender: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Worst case of one call, held on an account path until it is settled. Keyed by the effect that reserves."""

    effect: str
    accounts: tuple[str, ...]           # from the leaf up to the run's root account ""
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Ends a reservation: ``usage`` is what was really used (up to the reserve; the excess is an overrun)."""

    effect: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimit:
    account: str                        # scope path; "" is the run
    limits: JsonValue                   # {"usd": "5", "tokens": 2000000, "turns", "agents", "tool_calls", "wall_s", "sandbox_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    account: str
    limits: JsonValue
    used: Usage
    reserved: Usage
    overrun: Usage


# ---- state -------------------------------------------------------------------------------------

StateReach = Literal["run", "project"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAddress:
    """Where a state lives. ``owner``: the run's id for reach ``run``, else the project."""

    reach: StateReach
    owner: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """One version of a state's value, as somebody wrote it. Versions count from 1 without gaps."""

    version: int
    model_version: int                  # of the model that the value was written by
    value: JsonValue
    run_id: str
    effect: str                         # the key of the write
    written_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWrite:
    """A compare-and-swap: stored as version ``expected + 1`` if the present version is ``expected`` (0: no value yet)."""

    at: StateAddress
    expected: int
    model_version: int
    value: JsonValue
    effect: str
    written_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWait:
    """A parked run waits for a version after ``version``: it becomes ready when there is one."""

    at: StateAddress
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction writes, in this order. Writing the same batch twice changes nothing.

    A ``run.generation`` opens that generation for the whole batch: its effects, completions and reservations belong to it, and
    reservations that older ones left open end. A gap in the events, or a completion of what was never requested, is a
    ``ValueError`` and nothing is written.
    """

    accounts: tuple[AccountLimit, ...] = ()
    requested: tuple[EffectRequested, ...] = ()
    reserved: tuple[Reservation, ...] = ()
    completed: tuple[EffectCompleted, ...] = ()
    settled: tuple[Settlement, ...] = ()
    asks: tuple[NewAsk, ...] = ()
    asks_closed: tuple[tuple[str, str], ...] = ()        # (ask id, why)
    inbox_done: tuple[int, ...] = ()                     # seq numbers now part of the journal
    timers: tuple[tuple[str, float], ...] = ()           # (effect key, due)
    timers_done: tuple[str, ...] = ()
    events: tuple[NewEvent, ...] = ()
    candidates: tuple[JsonValue, ...] = ()               # Candidate records, for listing and gc
    promotions: tuple[JsonValue, ...] = ()               # {"envelope_digest", "ref", "old", "new"}
    archived: tuple[str, ...] = ()                       # keys of a finished epoch: they and all below them leave ``effects``
    state_waits: tuple[StateWait, ...] = ()              # of a run that parks; ended by its next change of state
    run: RunUpdate | None = None


class Journal(Protocol):
    """Every method may raise ``StoreUnavailable``; every fenced one ``LeaseLost``."""

    # runs and sources
    async def put_source(self, digest: str, files: dict[str, str]) -> None: ...
    async def get_source(self, digest: str) -> dict[str, str]: ...
    async def create_run(self, run: NewRun) -> RunRecord: ...
    async def get_run(self, run_id: str) -> RunRecord:
        """Raises ``NotFound``."""
        ...
    async def list_runs(self, *, limit: int = 50, tenant: str | None = None, parent_run: str | None = None) -> list[RunRecord]:
        """Newest first."""
        ...

    # leases
    async def lease(self, run_id: str) -> Lease | None:
        """The present lease, expired or not."""
        ...
    async def claim(self, run_id: str, holder: Holder, *, ttl_s: float, replace_epoch: int | None = None) -> Lease | None:
        """A lease with the next epoch if none is live, or if the live one has ``replace_epoch`` (its holder is known dead)."""
        ...
    async def claim_ready(self, holder: Holder, *, ttl_s: float, limit: int = 1) -> list[Lease]:
        """Leases on runs that are queued, ready (``ready_at`` past) or running without a live lease; oldest first."""
        ...
    async def renew(self, lease: Lease, *, ttl_s: float) -> Lease: ...
    async def release(self, lease: Lease) -> None: ...

    # the one write
    async def commit(self, lease: Lease, batch: Batch) -> None: ...

    # reads
    async def effects(self, run_id: str, *, generation: int | None = None) -> list[EffectRow]:
        """Rows of one generation (default: the newest), by request order, sub-effects after their parents."""
        ...
    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[NewEvent]: ...
    async def accounts(self, run_id: str) -> list[AccountRecord]: ...
    async def asks(self, *, run_id: str | None = None, open_only: bool = True) -> list[AskRecord]: ...
    async def get_ask(self, ask_id: str) -> AskRecord:
        """Raises ``NotFound``."""
        ...
    async def archive(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[EffectRow]:
        """Rows of finished epochs, oldest first; ``after``: how many to leave out."""
        ...
    async def timers(self, run_id: str) -> dict[str, float]: ...
    async def usage(self, run_id: str) -> Usage:
        """Sum over all sub-effects of all generations that were really performed."""
        ...

    # state
    async def state_get(self, at: StateAddress) -> StateRecord | None:
        """The present value; None before the first write."""
        ...
    async def state_put(self, lease: Lease, write: StateWrite) -> StateRecord | None:
        """Stores a value by compare-and-swap, fenced like ``commit``, and makes the runs ready that wait for it. The same
        write again (same run, effect and version) gives the record that it left. None: another version is present."""
        ...
    async def state_history(self, at: StateAddress, *, after: int = 0, limit: int = 100) -> list[StateRecord]:
        """Versions after ``after``, in order."""
        ...

    # what other processes may do
    async def answer(self, ask_id: str, value: JsonValue, *, by: str, channel: str, at: float, note: str | None = None) -> AskRecord:
        """Stores the decision by compare-and-swap and makes the run ready. Raises ``AlreadyAnswered``, ``NotFound``."""
        ...
    async def post(self, run_id: str, kind: str, body: JsonValue, *, target: str | None, sender: str, at: float) -> int:
        """Adds to the inbox and makes the run ready."""
        ...
    async def inbox(self, run_id: str) -> list[InboxItem]:
        """Items that are not yet part of the journal, in order."""
        ...

    # wake-ups: a hint only (a poll stands behind it)
    def listen(self) -> AsyncIterator[str]:
        """Ids of runs that got an answer, a message, an event batch or became ready."""
        ...

    async def close(self) -> None: ...
