"""From arguments to an exit code: the one place where errors become a line and a number."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from capataz.cli.output import emit_json, soften, stderr_line
from capataz.contracts.errors import CapatazError, ProgramLoadError, RunTakenOver, StoreUnavailable, UsageError, exit_code

WRONG_USE = 64
INTERRUPTED = 130
ENVIRONMENT = 3
_WORLD = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


def invoke(args: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; never raises an ``Exception``."""
    soften()
    flags = list(args[: args.index("--")] if "--" in args else args)
    as_json, debug = "--json" in flags, "--debug" in flags or bool(os.environ.get("CAPATAZ_DEBUG"))
    rest = [arg for arg in flags if arg != "--debug"] + list(args[len(flags) :])
    try:
        code = _dispatch(rest)
        _flush()
        return code
    except BrokenPipeError:
        _let_go(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            _traceback()
        return _report(error, as_json)


def _dispatch(args: list[str]) -> int:
    """Runs the verb. Typer's own complaints become ``UsageError``s; its ``main`` is left out, since it swallows broken pipes."""
    import typer

    from capataz.cli.verbs import app

    command = typer.main.get_command(app)
    try:
        with command.make_context("capataz", args) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            stderr_line(str(error.message))
            return WRONG_USE
        place = getattr(getattr(error, "ctx", None), "command_path", "capataz")
        said = error.format_message().rstrip(".")
        quotes = "; put quotes around a text of several words" if said.startswith("Got unexpected extra argument") else ""
        raise UsageError(f"{said}{quotes}; see `{place} --help`") from error
    except typer.Abort:
        return INTERRUPTED


def code_of(error: CapatazError) -> int:
    """The exit code of an error that ended a command."""
    if isinstance(error, (UsageError, ProgramLoadError)):
        return WRONG_USE
    if isinstance(error, (RunTakenOver, StoreUnavailable)):
        return ENVIRONMENT
    return exit_code("failed", error.code)


def _report(error: Exception, as_json: bool) -> int:
    if isinstance(error, CapatazError):
        code, name, message = code_of(error), error.code, str(error)
    elif isinstance(error, OSError) and error.errno is not None:
        code, name = ENVIRONMENT if error.errno in _WORLD else 1, "os_error"
        message = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
    else:
        code, name = 1, "internal_error"
        message = f"a mistake of Capataz itself: {type(error).__name__}: {error} (--debug shows where)"
    stderr_line(f"capataz: {message}")
    if as_json:
        try:
            emit_json({"error": {"code": name, "message": " ".join(message.split())}})
            _flush()
        except OSError:
            _let_go(sys.stdout)
    return code


def _traceback() -> None:
    import traceback

    traceback.print_exc(file=sys.stderr)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _let_go(stream: object) -> None:
    """The reader is gone: nothing more is written, also not by the interpreter at its end."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
