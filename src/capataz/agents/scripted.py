"""The scripted model: ``scripted:PATH.py`` names a file with ``respond(call)`` (for tests, demo and evaluation).

The script runs in the worker. Whatever it raises, ``SystemExit`` included, becomes ``ScriptError`` and leaves the worker alive.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import linecache
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from capataz.agents.model_client import CallInfo, ClientReply, ProviderFailure
from capataz.agents.scripted_scope import DEFAULT_TOKENS, SCOPE, Call, Said, Slept
from capataz.contracts.canonical import digest
from capataz.contracts.errors import ScriptError
from capataz.contracts.journal import Usage

PREFIX = "scripted:"
LOG_VARIABLE = "CAPATAZ_SCRIPT_LOG"

_loaded: dict[str, tuple[tuple[int, int, int], Callable[[Call], Any]]] = {}


def load_scripted(path: str) -> ScriptedClient:
    """The client for ``PATH.py`` (with or without ``scripted:``). The file is read at the first call, and again when it changes."""
    return ScriptedClient(path.removeprefix(PREFIX))


class ScriptedClient:
    """A ``ModelClient``. Raises ``ScriptError`` for a script that cannot be used or answers something that is no answer."""

    window_tokens = 0

    def __init__(self, path: str) -> None:
        self.path = path
        self.model = PREFIX + path

    async def reply(
        self,
        *,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        output_schema: dict[str, Any] | None,
        max_output_tokens: int,
        call: CallInfo,
    ) -> ClientReply:
        respond = respond_of(self.path)
        asked = Call(
            agent=call.agent, turn=call.turn, attempt=call.attempt, prompt=call.prompt, messages=messages, tools=tools,
            output_schema=output_schema, data=call.data, run_id=call.run_id,
        )
        answer = await _respond(self.path, respond, asked)
        while isinstance(answer, Slept):
            await asyncio.sleep(answer.seconds)
            answer = _later(answer)
        outcome = _reply(self.path, answer, call.turn)
        _log(call, messages)
        if isinstance(outcome, ProviderFailure):
            raise outcome
        return outcome


def _later(slept: Slept) -> Any:
    then = slept.then
    if slept.usage is not None and isinstance(then, (Said, Slept)):
        then.usage = then.usage or slept.usage
    return then


# ---- the script ----------------------------------------------------------------------------------


def respond_of(path: str) -> Callable[[Call], Any]:
    """The script's ``respond``; cached by the file's identity and time. Raises ``ScriptError``."""
    try:
        stat = os.stat(path)                   # noqa: PTH116 (once a call)
    except (OSError, ValueError) as error:
        raise ScriptError(f"the script {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    known = _loaded.get(path)
    if known is None or known[0] != stamp:
        known = _loaded[path] = (stamp, _load(path))
    return known[1]


def _load(path: str) -> Callable[[Call], Any]:
    name = "capataz_script_" + hashlib.sha256(os.fsencode(Path(path).absolute())).hexdigest()[:16]
    module = ModuleType(name)
    module.__file__ = path
    module.__dict__.update(SCOPE)
    sys.modules[name] = module                 # dataclasses and pickles of the script look their module up
    linecache.checkcache(path)
    try:
        source = Path(path).read_bytes()
        exec(compile(source, path, "exec"), module.__dict__)
    except SyntaxError as error:
        raise ScriptError(f"the script {path} does not parse: {error.msg} (line {error.lineno})") from None
    except BaseException as error:
        raise _script_error(path, error, "loading") from None
    respond = module.__dict__.get("respond")
    if not callable(respond):
        raise ScriptError(f"the script {path} has no function respond(call)")
    return respond


async def _respond(path: str, respond: Callable[[Call], Any], call: Call) -> Any:
    try:
        answer = respond(call)
        return await answer if inspect.isawaitable(answer) else answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise                              # we are cancelled, not the script's doing
        raise _script_error(path, error, repr(call)) from None
    except BaseException as error:
        raise _script_error(path, error, repr(call)) from None


def _script_error(path: str, error: BaseException, where: str) -> ScriptError:
    if isinstance(error, ScriptError):
        return ScriptError(f"{error.message} ({path}, {where})", **error.details)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = f", line {lines[-1]}" if lines else ""
    return ScriptError(f"the script {path} raised {type(error).__name__}: {error} ({where}{line})", type=type(error).__name__, line=lines[-1] if lines else None)


# ---- its answer ----------------------------------------------------------------------------------


def _reply(path: str, answer: Any, turn: int) -> ClientReply | ProviderFailure:
    parts: list[Any] = list(answer) if isinstance(answer, (list, tuple)) else [answer]  # pyright: ignore[reportUnknownArgumentType]
    wrong = [p for p in parts if not isinstance(p, Said)]
    if not parts or wrong:
        raise ScriptError(f"the script {path} answered {_repr(wrong[0] if wrong else answer)}, which is no answer; use tool, say, submit, fail, raw or sleep_s")
    if len(parts) > 1 and any(p.kind in ("fail", "raw") for p in parts):
        raise ScriptError(f"the script {path} answered a list with fail or raw in it; a list holds tool(...), submit(...) and say(...)")
    first: Said = parts[0]
    if first.kind == "fail":
        return _failure(first)
    tokens = next((p.usage for p in reversed(parts) if p.usage is not None), DEFAULT_TOKENS)
    message = first.message if first.kind == "raw" else _message(parts, turn)
    return ClientReply(message=message, usage=Usage(input_tokens=tokens[0], output_tokens=tokens[1]), finish="tool_calls" if message.get("tool_calls") else "stop")


def _repr(value: Any) -> str:
    try:
        return repr(value)[:200]
    except Exception:
        return f"a {type(value).__name__}"


def _failure(said: Said) -> ProviderFailure:
    kind, status = said.failure["kind"], said.failure["status"]
    if kind == "http" and status is None:
        status = 500
    return ProviderFailure(kind, f"scripted failure: {status or kind}", status=status, retry_after_s=said.failure["retry_after_s"])


def _message(parts: list[Said], turn: int) -> dict[str, Any]:
    text = "\n".join(p.text for p in parts if p.kind == "say")
    calls = [p for p in parts if p.kind == "tool"]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{turn}_{i}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for i, c in enumerate(calls)
        ]
    return message


def _log(call: CallInfo, messages: list[dict[str, Any]]) -> None:
    """One JSON line for each answered call, with a single ``write``: lines of many processes never mix."""
    target = os.environ.get(LOG_VARIABLE)
    if not target:
        return
    entry = {"run": call.run_id, "agent": call.agent, "turn": call.turn, "attempt": call.attempt, "pid": os.getpid(), "digest": digest(messages)}
    try:
        handle = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise ScriptError(f"{LOG_VARIABLE}={target} cannot be written: {error.strerror}") from None
