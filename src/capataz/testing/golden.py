"""Golden journals: a run's journal as one JSON file, replayed by the code of the day (``python -m capataz.testing.golden``).

A file holds the pinned sources, the effects of the run's newest generation and its end. Replay gives the sources to today's
program process and hands out the recorded deliveries: every request must be the recorded one, and nothing may be performed.

``behaviour`` numbers what a journal relies on. Code that must decide otherwise than an older journal says raises the number and
keeps the old way for the older files; ``BEHAVIOURS`` says what each number changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue, to_json
from capataz.contracts.errors import UsageError
from capataz.contracts.journal import (
    Batch,
    EffectCompleted,
    EffectRequested,
    EffectRow,
    Holder,
    Journal,
    NewRun,
    RunRecord,
    RunUpdate,
    Usage,
)
from capataz.testing.crash_sweep import echo
from capataz.testing.fake_agents import FakeCall
from capataz.testing.lab import Lab, open_lab
from capataz.vm.ports import Parking

FORMAT = 1
BEHAVIOURS: dict[int, str] = {
    1: "keys are SCOPE/KIND:NAME#DIGEST16.ORDINAL over canonical JSON; deliveries one by one; timers are sleeps; chance is seeded by scope",
}
BEHAVIOUR = max(BEHAVIOURS)


async def export(journal: Journal, run_id: str) -> dict[str, JsonValue]:
    """A finished run as data."""
    run = await journal.get_run(run_id)
    rows = await journal.effects(run_id)
    return {
        "format": FORMAT, "behaviour": BEHAVIOUR,
        "run": {name: to_json(getattr(run, name)) for name in ("run_id", "program", "state", "outcome", "reason", "input", "options", "result", "created_at", "started_at")},
        "files": await journal.get_source(run.source_digest),
        "effects": [_row(row) for row in rows],
    }


def _row(row: EffectRow) -> dict[str, JsonValue]:
    kept = {f.name: getattr(row, f.name) for f in fields(EffectRow) if f.name not in ("usage", "worker", "epoch", "generation")}
    return {**to_json(kept), "usage": row.usage.to_json()}


async def replay(golden: dict[str, Any], *, lab: Lab | None = None) -> RunRecord:
    """Runs the recorded program on its recorded journal and returns how it ended. Raises ``UsageError`` for a format of the future."""
    if golden["format"] != FORMAT or golden["behaviour"] not in BEHAVIOURS:
        raise UsageError(f"format {golden['format']}, behaviour {golden['behaviour']}: this version of Capataz cannot read the journal")
    if lab is not None:
        return await _replay(golden, lab)
    async with open_lab(_nothing_may_run) as opened:
        return await _replay(golden, opened)


def _nothing_may_run(call: FakeCall) -> JsonValue:
    raise AssertionError(f"the replay of a finished journal asked for {call.agent} anew")


async def _replay(golden: dict[str, Any], lab: Lab) -> RunRecord:
    run, journal = golden["run"], lab.journal
    await journal.put_source("golden", golden["files"])
    await journal.create_run(NewRun(
        run_id=run["run_id"], program=run["program"], source_digest="golden", input=run["input"], options=run["options"], created_at=run["created_at"],
    ))
    lease = await journal.claim(run["run_id"], Holder(worker="golden", boot="lab", pid=0, pid_start=0), ttl_s=60)
    assert lease is not None
    await journal.commit(lease, _batch(golden["effects"], run))
    await journal.release(lease)
    return await lab.drive(run["run_id"], parking=Parking(sleeps_over_s=3600.0))


def _batch(rows: list[dict[str, Any]], run: dict[str, Any]) -> Batch:
    asked = {f.name for f in fields(EffectRequested)} - {"tree"}
    done = {f.name for f in fields(EffectCompleted)} - {"tree", "usage"}
    return Batch(
        requested=tuple(EffectRequested(**{k: v for k, v in row.items() if k in asked}, tree=row["start_tree"]) for row in rows),
        completed=tuple(
            EffectCompleted(**{k: v for k, v in row.items() if k in done}, tree=row["end_tree"], usage=Usage.from_json(row["usage"]))
            for row in rows if row["status"] != "requested"
        ),
        run=RunUpdate(state="running", started_at=run["started_at"]),
    )


async def make(program: str, input: JsonValue, **options: Any) -> dict[str, JsonValue]:
    """Runs a program on fake agents and exports its journal."""
    async with open_lab(echo) as lab:
        run = await lab.drive(await lab.start(program, input, **options), parking=Parking(sleeps_over_s=3600.0))
        if run.state not in ("completed", "failed"):
            raise UsageError(f"the program did not end: {run.state} {run.waiting}")
        return await export(lab.journal, run.run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a golden journal, or replay some.")
    parser.add_argument("program", nargs="?", help="file.py:name; without --out it is only run")
    parser.add_argument("--input", default="null", help="JSON")
    parser.add_argument("--out", type=Path, help="where the journal goes")
    parser.add_argument("--replay", type=Path, nargs="*", default=[], help="journals to replay")
    given = parser.parse_args()
    if given.program:
        made = asyncio.run(make(given.program, json.loads(given.input)))
        if given.out:
            given.out.write_text(json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    for file in given.replay:
        golden = json.loads(file.read_text())
        ended = asyncio.run(replay(golden))
        same = (ended.state, ended.result) == (golden["run"]["state"], golden["run"]["result"])
        print(f"{file}: {'as recorded' if same else f'{ended.state} {ended.reason}'}")  # noqa: T201


if __name__ == "__main__":
    main()
