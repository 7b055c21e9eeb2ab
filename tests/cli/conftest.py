from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cli_fakes import FakeApp, FakeWiring

from capataz.cli import bridge
from capataz.cli.entry import invoke


@dataclass
class Said:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one object of stdout; nothing else may be there."""
        assert self.out.count("\n") == 1 and self.out.endswith("\n"), self.out
        return json.loads(self.out)


@pytest.fixture
def app() -> FakeApp:
    return FakeApp()


@pytest.fixture
def wired(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> FakeWiring:
    fake = FakeWiring(app)
    monkeypatch.setattr(bridge, "wiring", lambda: fake)
    return fake


@pytest.fixture
def cli(wired: FakeWiring, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*args: str) -> Said:
        capfd.readouterr()
        code = invoke(args)
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return call
