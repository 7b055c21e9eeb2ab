"""What a person asks for at the door: checked values only, the same for the command line and the service."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from capataz.contracts.canonical import JsonValue

Approval = Literal["ask", "yes", "no_promote"]
SandboxName = Literal["bubblewrap", "gvisor", "container", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoRequest:
    """``capataz do``: a request on a repository. All of it is stored with the run and holds for ``resume``.

    ``None`` means the default: the checked-out branch, its commit, the configured model, the repository's own policy, no
    money limit, no time limit. ``criteria`` empty: the request itself is the criterion.
    """

    request: str
    repository: Path
    criteria: tuple[str, ...] = ()
    program: str = "ultracode"
    model: str | None = None
    target: str | None = None                  # branch name, with or without refs/heads/
    base: str | None = None                    # any revision
    max_rounds: int = 3                        # 1..3
    max_workers: int = 4                       # 1..4
    max_turns: int = 40                        # model turns of one agent
    budget_usd: Decimal | None = None
    timeout_s: float | None = None             # running time, waits for people not counted
    policy: Path | None = None
    sandbox: SandboxName = "bubblewrap"
    trust_repository: bool = False
    approval: Approval = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """``capataz run``: any program by name, ``pkg.mod:name`` or ``file.py:name``."""

    program: str
    input: JsonValue = None
    untrusted: bool = False                    # nobody vouches for the program: it and its steps run in a sandbox
    model: str | None = None
    max_turns: int = 40
    budget_usd: Decimal | None = None
    timeout_s: float | None = None
