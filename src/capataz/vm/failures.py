"""How a program ended badly: its exception as the error that the kernel records."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from capataz.contracts.errors import CapatazError, ProgramFailed, ProgramLoadError, StepFailed
from capataz.vm.sites import error_site, is_program

FRAMES = 12


def error_json(error: BaseException) -> dict[str, Any]:
    """The wire form of what a program raised: errors of ours as they are, others as ``ProgramFailed``."""
    try:
        return as_error(error).to_json()
    except Exception as broken:  # an exception whose own __str__ raises
        return ProgramFailed(f"{type(error).__name__} (it cannot be shown: {type(broken).__name__})").to_json()


def as_error(error: BaseException) -> CapatazError:
    if isinstance(error, CapatazError):
        return error
    if isinstance(error, BaseExceptionGroup):
        leaves = list(_leaves(error))  # pyright: ignore[reportUnknownArgumentType]
        ours = [leaf for leaf in leaves if isinstance(leaf, CapatazError)]
        if len(ours) == len(leaves):
            return ours[0]
    if isinstance(error.__cause__, StepFailed):
        return error.__cause__  # the built-in exception stands for it inside the program only
    return _failed(error)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield error


def _failed(error: BaseException) -> ProgramFailed:
    site = error_site(error.__traceback__)
    name = type(error).__name__
    text = " ".join(str(error).split())
    where = f"{site}: " if site else ""
    if isinstance(error, SystemExit):
        return ProgramFailed(f"{where}the program called sys.exit({text}); return or raise instead", type=name, site=site, traceback="")
    return ProgramFailed(f"{where}{name}: {text}" if text else f"{where}{name}", type=name, site=site, traceback=short(error))


def short(error: BaseException) -> str:
    """The traceback without the runtime's own frames."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [frame for frame in frames if is_program(frame.filename)] or list(frames)
    # Without the marks below the lines, which differ between versions of Python: this text is recorded.
    lines = [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}\n' for frame in kept[-FRAMES:]]
    return "".join(lines + traceback.format_exception_only(error))


_EXTRAS = {"langgraph": "langgraph", "openai": "openai", "anthropic": "anthropic"}
"""Libraries that come with an extra of ours."""


def load_error(error: BaseException, module: str) -> CapatazError:
    """Why a program's module could not be imported, in one line."""
    if isinstance(error, CapatazError):
        return error
    if isinstance(error, SyntaxError):
        return ProgramLoadError(f"{error.filename}:{error.lineno}: {error.msg}")
    site = error_site(error.__traceback__) or module
    text = " ".join(str(error).split())
    if isinstance(error, ImportError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        hint = f"; install capataz[{extra}]" if extra and isinstance(error, ModuleNotFoundError) else ""
        return ProgramLoadError(f"{site}: {text}{hint}", site=site)
    name = type(error).__name__
    return ProgramLoadError(f"{site}: {name}: {text}" if text else f"{site}: {name}", site=site, traceback=short(error))
