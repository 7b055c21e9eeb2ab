"""Checks of what an agent submits: named ones that the runtime performs, or plain functions of the program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import ImpureProgram
from capataz.vm.runtime import Runtime
from capataz.vm.values import plain, problem, typed


@dataclass(frozen=True, slots=True)
class Check:
    """A check that the runtime performs at ``submit``.

    A refusal goes back to the agent at most ``attempts`` times; then ``"error"`` raises the rule's own error and ``"accept"``
    takes the submit as it is.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attempts: int = 1
    then: Literal["error", "accept"] = "error"


def accept_wire(runtime: Runtime, accept: Check | Callable[[Any], Any] | None, output: Any, *, wrap: bool = False) -> JsonValue:
    """``accept=`` as the kernel gets it; a function stays here and is called by number."""
    if accept is None:
        return None
    if isinstance(accept, Check):
        return {"check": accept.name, "args": plain(dict(accept.args)), "attempts": accept.attempts, "then": accept.then}
    function = accept

    def call(value: JsonValue) -> str | None:
        given = value["value"] if wrap and isinstance(value, dict) and "value" in value else value
        try:
            return _verdict(function, given if output is None else typed(output, given))
        except ValidationError as error:
            return problem(error)

    return {"callback": runtime.register_callback(call), "attempts": 1, "then": "error"}


def context_wire(runtime: Runtime, context: Callable[[list[Any]], Any] | None) -> JsonValue:
    """``context=`` as the kernel gets it."""
    if context is None:
        return None
    function = context
    return {"callback": runtime.register_callback(lambda messages: plain(_pure(function, messages)))}


def _verdict(function: Callable[[Any], Any], value: Any) -> str | None:
    """None: accepted. Text: what to tell the agent."""
    try:
        said = _pure(function, value)
    except (ValueError, AssertionError) as error:
        return " ".join(str(error).split()) or f"refused by {getattr(function, '__name__', 'the check')}"
    if said is None or said is True:
        return None
    if said is False:
        return f"refused by {getattr(function, '__name__', 'the check')}"
    return str(said)


def _pure(function: Callable[[Any], Any], value: Any) -> Any:
    """Calls a check. An async one may be used as long as it waits for nothing: checks are not journaled."""
    result = function(value)
    if not inspect.iscoroutine(result):
        return result
    try:
        result.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        result.close()
    name = getattr(function, "__name__", "a check")
    raise ImpureProgram(f"{name} waits for an effect; a check must be pure: do the work before or after run()")
