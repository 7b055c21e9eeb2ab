"""What the command line needs of ``capataz.wiring.app``: the module has the functions of ``Wiring``, an app the methods of ``App``.

All errors are ``CapatazError``s: ``UsageError`` (and its children) for ids, values and files that cannot be used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import JsonValue
from capataz.contracts.jobs import DoRequest, ProgramRequest
from capataz.contracts.journal import AskRecord, Journal, NewEvent, RunRecord

OnEvent = Callable[[NewEvent], None]
"""Called for each event of the run in order, on the event loop; must not block. A resumed run's old events are not given again."""

AskPerson = Callable[[AskRecord], Awaitable[JsonValue]]
"""Asks the person at the terminal; gives back the value, or None to leave the question open (the run then parks)."""


class App(Protocol):
    """A worker's parts, opened: database, blobs, kernel. Closing it stops what it started and releases its leases."""

    @property
    def home(self) -> Path: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def blobs(self) -> Blobs: ...

    async def start_do(self, request: DoRequest) -> str:
        """Resolves repository, target, policy, suites, model and prompts, stores the run (queued) and returns its id. Runs nothing.

        Raises ``RepositoryUnusable``, ``NoSuites``, ``InvalidPolicy``, ``NotFound`` (program), ``UsageError``, ``SandboxUnavailable``."""
        ...

    async def start_program(self, request: ProgramRequest) -> str:
        """Loads, checks the input's type, pins the sources, stores the run (queued). Raises ``ProgramLoadError``, ``NotFound``."""
        ...

    async def start_rebase(self, run_id: str) -> str:
        """A new run that puts the run's candidate on the target's present commit. Raises ``RunNotResumable`` without a candidate."""
        ...

    async def drive(self, run_id: str, *, on_event: OnEvent | None = None, ask: AskPerson | None = None) -> RunRecord:
        """Claims the run and carries it on in the foreground until it is finished or parked.

        Without ``ask`` a question parks the run; with it the answer is stored by ``user``/``terminal`` and the run goes on. Raises
        ``RunNotResumable`` when another live worker holds it. After ``request_drain`` it returns at the next safe point, the run
        left claimable. Cancelling the task stops at once; the run stays resumable."""
        ...

    async def detach(self, run_id: str) -> None:
        """Starts a process of its own that drives the run and outlives this one."""
        ...

    async def held(self, run_id: str) -> bool:
        """A live worker (this one not counted) holds the run's lease."""
        ...

    async def differs(self, run_id: str) -> str | None:
        """The file that the run's program came from, when it now has another text than the run holds; None also when it is gone."""
        ...

    async def summary(self, run_id: str) -> dict[str, Any]:
        """``show --json``'s object (``capataz.wiring.summary``). Raises ``NotFound``."""
        ...

    async def usage_by(self, run_id: str) -> dict[str, Any]:
        """``{"agent": {name: usage}, "program": {name: usage}}``, of all generations. Raises ``NotFound``."""
        ...

    async def answer(self, ask_id: str, value: JsonValue, *, by: str, channel: str, note: str | None) -> AskRecord:
        """Checks the value against the ask's kind, options and schema and stores it by compare-and-swap.
        Raises ``NotFound``, ``AlreadyAnswered``, ``UsageError``."""
        ...

    async def cancel(self, run_id: str, *, reason: str) -> RunRecord:
        """Asks the holder to cancel and waits for the end; without a live holder cancels and cleans up here."""
        ...

    async def pause(self, run_id: str, *, agent: str | None) -> None: ...
    async def notify(self, run_id: str, text: str, *, agent: str | None) -> None: ...

    async def plan(self, run_id: str, *, with_file: str | None) -> dict[str, Any]:
        """What a resume with this file would reuse, run and orphan, and its price (``vm.plan``); writes and runs nothing."""
        ...

    async def fork(self, run_id: str, key: str) -> str:
        """A new run with all results up to and including the effect; its id. Raises ``NotFound``, ``UsageError``."""
        ...

    async def resolve(self, run_id: str, key: str, decision: dict[str, Any]) -> None:
        """Stores what happened to an effect in doubt: ``{"redo": True}`` or ``{"result": JSON}``. Raises ``NotFound``."""
        ...

    async def topup(self, run_id: str, amounts: dict[str, str], *, scope: str | None) -> str:
        """Raises limits (``usd``, ``tokens``, ``turns``, ``agents``, ``tool_calls``, ``wall_s``, ``sandbox_s``); gives the account's
        name. Raises ``RunNotResumable`` for a run that is over for another reason."""
        ...

    async def prepare_resume(self, run_id: str, *, with_file: Path | None, accept_orphans: bool = False) -> None:
        """Checks that the run can be carried on and opens a new generation where one is needed (``--with``, failed or
        cancelled runs), or posts ``resume`` for a paused one. ``drive`` then runs it. Raises ``RunNotResumable``."""
        ...

    async def gc(self) -> dict[str, Any]:
        """``{"removed": [path...], "freed_bytes": n, "kept": n}``."""
        ...

    def request_drain(self) -> None:
        """Ctrl-C once: park at the next safe point. Safe to call from a signal handler of the loop."""
        ...


class Database(Protocol):
    """``capataz db``: works without an app."""

    async def start(self) -> str:
        """Starts the embedded server when needed; returns the URL."""
        ...

    async def stop(self) -> bool:
        """True: a server was stopped; False: none ran. An outside database is a ``UsageError``."""
        ...

    async def url(self) -> str: ...
    async def migrate(self) -> dict[str, Any]:
        """``{"from": revision or null, "to": revision}``."""
        ...

    async def backup(self, target: Path) -> dict[str, Any]:
        """``{"file": path, "bytes": n}``; refuses to overwrite."""
        ...

    async def restore(self, source: Path) -> dict[str, Any]: ...


class Wiring(Protocol):
    """The module ``capataz.wiring.app``. ``home`` None: ``CAPATAZ_HOME`` or the platform's data folder."""

    def open_app(self, *, home: Path | None = None) -> AbstractAsyncContextManager[App]: ...
    def open_database(self, *, home: Path | None = None) -> Database: ...

    async def doctor(self, *, home: Path | None = None) -> dict[str, Any]:
        """``{"ok": bool, "checks": [{"name", "ok", "detail", "fix": text or null}], "sandboxes": [{"backend", "usable", "default",
        "enforces": [...], "detail"}]}``; a broken part is a check that is not ok, never an exception."""
        ...

    async def programs(self) -> list[dict[str, Any]]:
        """``[{"name", "source": "bundled" | "entry point", "summary"}]``."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """``[{"model", "usable": bool, "why": text or null, "input_usd_per_mtok", "output_usd_per_mtok", "window"}]``, aliases too."""
        ...

    async def prompts(self) -> list[dict[str, Any]]:
        """``[{"name", "source": "bundled" | path, "text"}]``."""
        ...

    async def crashtest(
        self, program: str, input: Any, model: str | None, max_points: int, seed: int, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """``{"program", "mode": "memory" | "processes", "seed", "points", "crashes", "by_point", "violations": [{"point", "number",
        "again", "what"}], "seconds"}``; ``say`` hears of the progress. Raises ``NotFound``, ``ProgramLoadError``."""
        ...
