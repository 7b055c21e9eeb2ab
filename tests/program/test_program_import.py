"""``import capataz`` loads next to nothing; its names appear when they are used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import capataz


def loaded(code: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {code}; import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    return set(json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout))


def test_import_is_light() -> None:
    found = loaded("import capataz")
    assert {name for name in found if name.startswith("capataz")} == {"capataz"}
    assert not found & {"pydantic", "asyncio", "typing", "agno"}


def test_every_name_is_there() -> None:
    assert {"run", "spawn", "fan_out", "race", "scope", "step", "ask", "tell", "artifact", "checkpoint", "sleep", "now", "budget",
            "messages", "receive", "load", "program", "Handle", "Failure", "Answer", "AgentResult"} <= set(capataz.__all__)  # fmt: skip
    for name in capataz.__all__:
        assert getattr(capataz, name) is not None
    assert set(capataz.__all__) <= set(dir(capataz))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = capataz.nothing  # type: ignore[attr-defined]  # pyright: ignore
