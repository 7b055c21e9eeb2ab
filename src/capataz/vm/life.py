"""A program's life on the loop: it is loaded, runs, and ends when all that it started has ended."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import ProgramFailed, ProgramLoadError, ValueNotSerializable
from capataz.vm.closure import entry
from capataz.vm.failures import load_error
from capataz.vm.handle import Handle
from capataz.vm.loop import ProgramLoop
from capataz.vm.program import Program
from capataz.vm.runtime import Runtime
from capataz.vm.sites import is_program
from capataz.vm.values import plain


def load_program(ref: str, files: Mapping[str, str] | None) -> Program[Any, Any]:
    """Imports a program. Raises ``ProgramLoadError`` in one line that says where."""
    module_name, name = entry(ref, files)
    try:
        module = importlib.import_module(module_name)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise load_error(error, module_name) from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Program):
        return found  # pyright: ignore[reportUnknownVariableType]
    shown = getattr(module, "__file__", None) or module_name
    if found is None:
        names = [key for key, value in vars(module).items() if isinstance(value, Program)]
        known = f"; it has {', '.join(names)}" if names else ""
        raise ProgramLoadError(f"{shown}: no program {name!r} in it{known}")
    raise ProgramLoadError(f"{shown}: {name} is no program; put @program above its `async def`")


async def live(loop: ProgramLoop, runtime: Runtime, program: Program[Any, Any], arguments: tuple[Any, ...]) -> JsonValue:
    """Runs a program to its end and gives its result as JSON.

    After its own code it waits for what it spawned, then cancels tasks and daemons that are left. An error cancels everything.
    """
    try:
        if program.budget is not None:
            await runtime.request("budget", input=program.budget.limits(), site=program.site)
        result = await program.fn(*arguments)
        await finish(runtime)
    except BaseException:
        await _cancel_rest(loop, runtime, "the program failed")
        raise
    await _cancel_rest(loop, runtime, "the program ended")
    try:
        return plain(result)
    except ValueNotSerializable as error:
        raise ValueNotSerializable(f"{program.site}: the result of {program.__name__}: {error.message}") from error


async def finish(runtime: Runtime, of: Callable[[Handle[Any]], bool] | None = None) -> None:
    """Waits for spawned work (that ``of`` holds for); the first unseen error ends the wait and is raised."""
    seen: set[int] = set()
    while True:  # leftover tasks may spawn more meanwhile
        fresh = [handle for handle in runtime.handles if id(handle) not in seen and (of is None or of(handle))]
        if not fresh:
            return
        seen.update(map(id, fresh))
        for settled in asyncio.as_completed([_outcome(handle) for handle in fresh if not handle.daemon]):
            error = await settled
            if error is not None:
                raise error


async def _outcome(handle: Handle[Any]) -> BaseException | None:
    await handle.settle()
    return handle.unseen_error()


async def _cancel_rest(loop: ProgramLoop, runtime: Runtime, reason: str) -> None:
    """Cancels tasks in creation order, lets them clean up, then cancels effects that are left."""
    own = asyncio.current_task()
    tasks = [task for task in loop.live_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)
    for handle in runtime.handles:
        handle.abandon(reason)


def deadlock(loop: ProgramLoop | None) -> ProgramFailed:
    """The error of a program that waits while nothing is open: no delivery can ever wake it."""
    sites = [site for task in loop.live_tasks() if (site := _waits_at(task.get_coro()))] if loop is not None else []
    where = f"{sites[0]}: " if sites else ""
    return ProgramFailed(
        f"{where}the program waits here for ever: no effect and no timer is open that could wake it", type="Deadlock", sites=sites
    )


def _waits_at(coroutine: Any) -> str:
    """The innermost program line of a suspended coroutine."""
    site = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and is_program(frame.f_code.co_filename):
            site = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None)
    return site
