"""Six programs killed at every fault point, resumed, and killed again in recovery (the seventh: ``test_sweeps_processes.py``).

A failure names its point, how often it had been reached, the second point, and the test's seed: the same come again with
``capataz crashtest FILE:NAME --seed N``, or this test.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_kit import SEEDS, SWEPT, Tell

from capataz.store.store import Store

FEW = 4
ON_POSTGRESQL = 40


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
async def test_killed_at_some_points(tmp_path: Path, tell: Tell, name: str) -> None:
    tell(SWEPT[name].title, "memory, a few", await SWEPT[name].sweep(tmp_path, seed=100, max_points=FEW, lanes=FEW))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", SWEPT)
async def test_killed_at_every_point(tmp_path: Path, tell: Tell, name: str, seed: int) -> None:
    report = await SWEPT[name].sweep(tmp_path, seed=seed, lanes=3)
    tell(SWEPT[name].title, "memory", report)
    assert report.crashes - report.recoveries > 0.8 * report.points, "too many points were not reached again"


@pytest.mark.sweep
@pytest.mark.parametrize("name", SWEPT)
async def test_killed_on_the_real_journal(tmp_path: Path, tell: Tell, store: Store, name: str) -> None:
    tell(SWEPT[name].title, "PostgreSQL", await SWEPT[name].sweep(tmp_path, seed=50, max_points=ON_POSTGRESQL, journal=store.journal))
