"""``capataz check`` with what this installation knows: its models, their prices and windows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from capataz.contracts.errors import CapatazError, UsageError
from capataz.contracts.harness import AgentLimits
from capataz.contracts.journal import Usage
from capataz.vm.checker import Report as Report
from capataz.vm.checker import check
from capataz.wiring.config import home_folder


def check_program(program: str, *, cwd: Path | None = None) -> Report:
    """Checks a program by path, import, entry point or name. Runs none of its code and writes nothing.

    Raises ``NotFound`` and ``ProgramLoadError`` for a file that cannot be used.
    """
    return check(program, cwd=cwd, models=Book(cwd or Path.cwd()))


class Book:
    """The checker's ``ModelBook``. Nothing is loaded before a program names a model. A configuration that cannot be used is
    no matter of the program's: models are then judged by what is built in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def problem(self, model: str) -> str | None:
        """Why a model is refused: unknown, or without a price."""
        from capataz.agents.models import STANDARD_ALIASES

        if model in STANDARD_ALIASES or model.startswith("scripted:"):
            return None
        try:
            resolved = self._models.resolve(model)
        except UsageError as error:
            return error.message
        if self._models.prices().rates(resolved) is None:
            return f"the model {model!r} has no price here: a money budget refuses it"
        return None

    def worst_call_usd(self, model: str) -> float | None:
        """A full window in, the most tokens out; None for a model whose price or window is not known."""
        if model.startswith("scripted:"):
            return 0.0
        try:
            resolved = self._models.resolve(model)
        except UsageError:
            return None
        window = self._models.window_tokens(resolved)
        usage = Usage(input_tokens=window, output_tokens=AgentLimits().max_output_tokens)
        price = self._models.prices().price(resolved, usage) if window else None
        return None if price is None else float(price)

    @cached_property
    def _models(self) -> Any:
        from capataz.agents.models import ModelsConfig

        try:
            models = ModelsConfig(_table(home_folder() / "config.toml"))
            project = _table(self._folder / "capataz.toml")
        except CapatazError:
            return ModelsConfig()
        try:
            return models.with_project(project, trusted=False)
        except CapatazError:
            return models


def _table(path: Path) -> Mapping[str, Any]:
    """The ``[models]`` table of a file; empty without one."""
    try:
        found = tomllib.loads(path.read_text("utf-8")).get("models", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
