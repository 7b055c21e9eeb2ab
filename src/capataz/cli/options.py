"""Values that people type, checked before anything starts. Bad ones are ``UsageError``s of one line."""

from __future__ import annotations

import getpass
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any, cast, get_args

from capataz.contracts import units
from capataz.contracts.errors import UsageError
from capataz.contracts.jobs import Approval, DoRequest, ProgramRequest, SandboxName

SCRIPTED = "scripted:"


def text(value: str, what: str) -> str:
    """Non-empty Unicode text."""
    if not value.strip():
        raise UsageError(f"{what} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid UTF-8") from None
    if "\x00" in value:
        raise UsageError(f"{what} holds a NUL character")
    return value


def folder(value: str, what: str) -> Path:
    path = _path(value, what)
    if not path.is_dir():
        raise UsageError(f"{what} {value!r} is no folder" if path.exists() else f"{what} {value!r} does not exist")
    return path


def file(value: str, what: str) -> Path:
    path = _path(value, what)
    if not path.is_file():
        raise UsageError(f"{what} {value!r} is no file" if path.exists() else f"{what} {value!r} does not exist")
    return path


def _path(value: str, what: str) -> Path:
    return Path(text(value, what)).expanduser().absolute()


def model(value: str | None) -> str | None:
    """A model id; the path of a scripted model becomes absolute, since the run may be resumed from anywhere."""
    if value is None:
        return None
    if text(value, "--model").startswith(SCRIPTED):
        return SCRIPTED + str(file(value.removeprefix(SCRIPTED), "the script of --model"))
    return value


def amount(value: str | None) -> Decimal | None:
    return None if value is None else units.usd(value)


def duration(value: str | None) -> float | None:
    return None if value is None else units.seconds(value)


def json_input(value: str | None) -> Any:
    """``--input``: JSON text, or ``@FILE``."""
    if value is None:
        return None
    source = file(value[1:], "the file of --input").read_bytes() if value.startswith("@") else value
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        hint = "" if value.startswith("@") else """; a text needs quotes of its own, as in --input '"text"'"""
        raise UsageError(f"--input is no JSON: {error}{hint}") from None


def sandbox(value: str, trusted: bool) -> SandboxName:
    if value not in get_args(SandboxName):
        raise UsageError(f"--sandbox {value!r} is unknown; choose one of {', '.join(get_args(SandboxName))}")
    if value == "local" and not trusted:
        raise UsageError("--sandbox local isolates nothing: add --trust-repository if you trust this repository and its agents")
    return cast(SandboxName, value)


def approval(yes: bool, no_promote: bool) -> Approval:
    if yes and no_promote:
        raise UsageError("--yes and --no-promote exclude each other: one promotes without asking, the other never promotes")
    return "yes" if yes else "no_promote" if no_promote else "ask"


def user() -> str:
    """Who answers at this terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid-{os.getuid()}"


def do_request(
    *,
    request: str,
    repo: str,
    criteria: list[str],
    model_id: str | None,
    program: str,
    target: str | None,
    base: str | None,
    max_rounds: int,
    max_workers: int,
    budget_usd: str | None,
    timeout: str | None,
    max_turns: int,
    policy: str | None,
    sandbox_name: str,
    trust_repository: bool,
    yes: bool,
    no_promote: bool,
) -> DoRequest:
    """All options of ``do``, checked."""
    return DoRequest(
        request=text(request, "the request"),
        repository=folder(repo, "--repo"),
        criteria=tuple(text(criterion, "--criterion") for criterion in criteria),
        program=text(program, "--program"),
        model=model(model_id),
        target=None if target is None else text(target, "--target"),
        base=None if base is None else text(base, "--base"),
        max_rounds=max_rounds,
        max_workers=max_workers,
        max_turns=max_turns,
        budget_usd=amount(budget_usd),
        timeout_s=duration(timeout),
        policy=None if policy is None else file(policy, "--policy"),
        sandbox=sandbox(sandbox_name, trust_repository),
        trust_repository=trust_repository,
        approval=approval(yes, no_promote),
    )


def program_request(
    *, program: str, input: str | None, model_id: str | None, budget_usd: str | None, timeout: str | None, max_turns: int,
    untrusted: bool = False,
) -> ProgramRequest:
    """All options of ``run``, checked."""
    return ProgramRequest(
        program=text(program, "PROGRAM"),
        input=json_input(input),
        untrusted=untrusted,
        model=model(model_id),
        max_turns=max_turns,
        budget_usd=amount(budget_usd),
        timeout_s=duration(timeout),
    )
