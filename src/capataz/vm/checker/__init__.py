"""``capataz check``: what can be said of a program without running any of its code."""

from __future__ import annotations

from capataz.vm.checker.amounts import Bound
from capataz.vm.checker.checking import RULES, Report, check, check_source
from capataz.vm.checker.context import ModelBook
from capataz.vm.checker.finding import Finding, Place, Rule

__all__ = ["RULES", "Bound", "Finding", "ModelBook", "Place", "Report", "Rule", "check", "check_source"]
