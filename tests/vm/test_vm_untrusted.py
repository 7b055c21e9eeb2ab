"""What the kernel refuses a program that nobody vouches for; the sandbox itself is tested in tests/program."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from capataz.contracts.errors import SandboxUnavailable
from capataz.testing.lab import open_lab
from capataz.vm.ports import process_source

PROGRAM = """from capataz import load, program, run


@program
async def main() -> list[str]:
    said = []
    for start in (lambda: run("a", prompt="x", model="scripted:/tmp/model.py"), lambda: run(load("other.py"))):
        try:
            await start()
            said.append("went")
        except Exception as error:
            said.append(str(error))
    return said
"""


async def test_what_would_leave_the_sandbox_is_refused_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "main.py").write_text(PROGRAM, "utf-8")
    async with open_lab(lambda call: "done") as lab:
        ports = lab.ports

        def confined(*given: object) -> object:
            made = ports(*given)  # type: ignore[arg-type]
            return dataclasses.replace(made, confined=made.zygote)

        monkeypatch.setattr(lab, "ports", confined)
        run = await lab.run(str(tmp_path / "main.py"), untrusted=True)
    assert run.state == "completed"
    model, loaded = run.result
    assert model.startswith("main.py:7: an untrusted program may not name a scripted model")
    assert "an untrusted program may not load files" in loaded


async def test_without_a_sandbox_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PROGRAM, "utf-8")
    async with open_lab(lambda call: "done") as lab:
        with pytest.raises(SandboxUnavailable):
            process_source(lab.ports(), {"untrusted": True})
        run_id = await lab.start(str(tmp_path / "main.py"), untrusted=True)
        with pytest.raises(SandboxUnavailable):
            await lab.drive(run_id)
        assert await lab.journal.effects(run_id) == []
