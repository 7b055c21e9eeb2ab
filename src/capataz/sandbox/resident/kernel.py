"""The few kernel calls that Python lacks, through ``_ctypes`` (importing ``ctypes`` itself takes longer than all the rest)."""

from __future__ import annotations

import sys

_DUMPABLE, _CHILD_SUBREAPER, _PDEATHSIG = 4, 36, 1
_found = None


def _prctl():  # type: ignore[no-untyped-def]
    global _found
    if _found is None:
        import _ctypes

        integer = type("c_long", (_ctypes._SimpleCData,), {"_type_": "l"})
        function = type("function", (_ctypes.CFuncPtr,), {"_flags_": 1, "_restype_": integer})
        _found = integer, function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]
    return _found


def prctl(option: int, value: int) -> None:
    """``prctl(option, value, 0, 0, 0)``; raises ``OSError`` when the kernel refuses. Nothing outside Linux."""
    if sys.platform != "linux":
        return
    integer, call = _prctl()
    if call(*(integer(v) for v in (option, value, 0, 0, 0))) != 0:
        raise OSError(f"prctl({option}) was refused")


def set_dumpable(yes: bool) -> None:
    """No: other processes of the same user can neither trace this one nor open its memory, descriptors or environment."""
    prctl(_DUMPABLE, int(yes))


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, also after ``setsid`` and double forks."""
    prctl(_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    prctl(_PDEATHSIG, 9)
