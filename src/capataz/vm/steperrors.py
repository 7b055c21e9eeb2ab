"""What a step's function raised, across the process border and back."""

from __future__ import annotations

import builtins
import json
import signal
import traceback
from typing import Any

from capataz.contracts.canonical import to_json
from capataz.contracts.errors import CapatazError, StepFailed, ValueNotSerializable

TRACEBACK_LINES = 30


def error_of(error: BaseException) -> dict[str, Any]:
    """The wire form of what the function raised: ours as it is, others as a ``StepFailed``."""
    if isinstance(error, CapatazError):
        return error.to_json()
    name = type(error).__name__
    known = getattr(builtins, name, None) is type(error)
    lines = "".join(traceback.format_exception(error)).splitlines()[-TRACEBACK_LINES:]
    text = str(error)
    failed = StepFailed(
        f"{name}: {text}" if text else name,
        type=name,
        module=type(error).__module__,
        traceback="\n".join(lines),
        args=_args(error) if known else None,
    )
    return failed.to_json()


def _args(error: BaseException) -> list[Any] | None:
    args: list[Any] = list(error.args)
    if isinstance(error, OSError) and error.filename is not None and len(args) == 2:
        args.append(error.filename)
    try:
        return json.loads(json.dumps(to_json(args)))
    except (ValueNotSerializable, ValueError, RecursionError):
        return None


def died(name: str, status: int) -> dict[str, Any]:
    """The wire form for a child that ended without a word; ``status`` as of ``os.waitstatus_to_exitcode``."""
    if status < 0:
        try:
            how = f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            how = f"was killed by signal {-status}"
        return StepFailed(f"{name} {how}", type="Killed", signal=-status).to_json()
    return StepFailed(f"{name} left its process with exit code {status}", type="SystemExit", exit_code=status).to_json()


def builtin_error(failed: StepFailed) -> Exception | None:
    """The same built-in exception as the step raised; None when it was no built-in one."""
    kind = getattr(builtins, str(failed.details.get("type")), None)
    args = failed.details.get("args")
    if not isinstance(kind, type) or not issubclass(kind, Exception) or args is None:
        return None
    if failed.details.get("module") != "builtins":
        return None
    try:
        return kind(*args)
    except TypeError:  # some need arguments that have no JSON form
        return None
