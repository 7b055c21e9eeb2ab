"""Where programs that nobody vouches for run, and how long any program may compute without asking for something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capataz.contracts.errors import UsageError
from capataz.vm.watchdog import BUSY_S
from capataz.wiring.config import Config
from capataz.wiring.home import runtime_folder


class ConfinedPrograms:
    """The source of their processes; nothing is imported before the first."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def spawn(self) -> Any:
        from capataz.vm.zygote import Confined

        return await Confined(self._launch).spawn()

    def _launch(self, arguments: list[str], env: Mapping[str, str]) -> tuple[list[str], list[int]]:
        from capataz.sandbox.confine import confine

        confined = confine([*arguments, "confined"], env, runtime_folder(self._config.home))
        return confined.argv, confined.descriptors


def written_folder(home: Path) -> Path:
    """Where programs lie that a model wrote."""
    return home / "programs" / "written"


def is_written_by_model(home: Path, program: str) -> bool:
    """Whether a program's file lies there, however it is spelled."""
    path = Path(program if program.endswith(".py") else program.rpartition(":")[0])
    return path.suffix == ".py" and path.resolve().is_relative_to(written_folder(home).resolve())


def busy_limit_s(config: Config) -> float:
    """``[programs] busy_s`` of ``config.toml``. Raises ``UsageError``."""
    table = config.settings.get("programs", {})
    given = table.get("busy_s", BUSY_S) if isinstance(table, dict) else None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or given <= 0:
        raise UsageError("config.toml: [programs] busy_s must be a number of seconds above 0")
    return float(given)
