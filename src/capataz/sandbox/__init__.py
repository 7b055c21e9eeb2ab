"""Sandboxes: where hostile files and commands live. See ``make_sandbox``.

Nothing here runs before it is asked: backends are imported when they are made.
"""

from __future__ import annotations

from capataz.sandbox.backends import NAMES, make_sandbox
from capataz.sandbox.doctor import BackendReport, doctor

__all__ = ["NAMES", "BackendReport", "doctor", "make_sandbox"]
