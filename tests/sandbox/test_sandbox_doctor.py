from __future__ import annotations

from pathlib import Path

from capataz.sandbox import doctor
from capataz.testing.sandbox_conformance import run_suite


async def test_doctor_reports_every_backend(tmp_path: Path) -> None:
    async def suite(sandbox, folder):
        return await run_suite(sandbox, folder, only=["exit_codes", "nothing_outside_is_writable"], quick=True)

    reports = {report.backend: report for report in await doctor(tmp_path, suite)}
    assert list(reports) == ["bubblewrap", "gvisor", "container", "local"]
    assert reports["bubblewrap"].usable and not reports["bubblewrap"].failed and "seccomp" in reports["bubblewrap"].enforces
    assert not reports["gvisor"].usable and reports["gvisor"].problem
    assert [f.status for f in reports["local"].findings] == ["passed", "not enforced"]
