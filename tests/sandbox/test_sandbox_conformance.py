from __future__ import annotations

import pytest

from capataz.sandbox import make_sandbox
from capataz.testing.sandbox_conformance import names, run_suite

_ISOLATING = {"bubblewrap"}


@pytest.mark.parametrize("check", names())
@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_backend_keeps_the_port(backend: str, check: str, tmp_path) -> None:
    (finding,) = await run_suite(make_sandbox(backend, runtime_dir=tmp_path / "rt"), _folder(tmp_path), only=[check])
    if finding.status == "not enforced":
        assert backend not in _ISOLATING, "an isolating backend enforces everything"
        pytest.skip(finding.detail)
    assert finding.status == "passed", finding.detail


def _folder(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place
