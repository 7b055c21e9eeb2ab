"""Where in a program something was asked: ``file:line`` of the nearest frame of program code."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType

_FILES: set[str] = set()
"""File names of program code, as its code objects carry them."""


def register(filename: str) -> None:
    _FILES.add(filename)


def is_program(filename: str) -> bool:
    return filename in _FILES


def call_site(depth: int = 1) -> str:
    """The program line that is being executed; ``""`` when none is on the stack."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename in _FILES:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def error_site(traceback: TracebackType | None) -> str:
    """The innermost program line of a traceback; ``""`` when there is none."""
    site = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename in _FILES:
            site = f"{filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return site
