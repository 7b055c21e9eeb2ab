"""Journals of earlier versions replay on today's code: nothing runs again, and they end as they did."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from capataz.contracts.errors import UsageError
from capataz.testing.golden import BEHAVIOURS, make, replay

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json"))
PROGRAMS = Path(__file__).parent / "programs" / "golden.py"


def test_there_are_some() -> None:
    assert len(GOLDEN) >= 3 and sorted(BEHAVIOURS) == list(range(1, len(BEHAVIOURS) + 1))


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
async def test_a_kept_journal_replays(file: Path) -> None:
    golden = json.loads(file.read_text())  # noqa: ASYNC240
    run = await replay(golden)
    assert (run.state, run.result, run.reason) == (golden["run"]["state"], golden["run"]["result"], golden["run"]["reason"])


async def test_a_changed_program_does_not_replay() -> None:
    golden = json.loads(next(f for f in GOLDEN if f.stem.startswith("fan")).read_text())
    changed = copy.deepcopy(golden)
    (name,) = [path for path in changed["files"] if path.endswith(".py")]
    changed["files"][name] = changed["files"][name].replace('prompt=f"first', 'prompt=f"other')
    run = await replay(changed)
    assert run.state == "failed" and run.reason["code"] == "nondeterminism_error"


async def test_a_journal_of_the_future_is_refused() -> None:
    golden = json.loads(GOLDEN[0].read_text()) | {"behaviour": max(BEHAVIOURS) + 1}
    with pytest.raises(UsageError, match="cannot read"):
        await replay(golden)


async def test_what_is_recorded_today_replays() -> None:
    made = await make(f"{PROGRAMS}:nested", 3)
    assert (await replay(made)).result == made["run"]["result"]
