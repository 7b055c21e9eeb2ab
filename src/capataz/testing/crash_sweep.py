"""Crash sweep: a program is killed at every fault point, killed again in recovery, and must end as if nothing had happened.

Here in memory, with fake agents; ``crash_real`` does the same with processes, a database and SIGKILL. A seed gives the same
kills again; so does a case's number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.journal import FINAL_STATES, EffectRow, RunRecord
from capataz.testing.fake_agents import FakeCall, Respond
from capataz.testing.lab import Crash, Lab, open_lab
from capataz.testing.samples import sample
from capataz.vm.keys import agent_name
from capataz.vm.ports import Parking

STAY = Parking(sleeps_over_s=3600.0)
AGAIN_WITHIN = 8        # fault points of the recovery, one of which kills it again
ROUNDS = 40             # of answers to a parked run
Judge = Callable[[RunRecord, JsonValue], list[str]]


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold when the worker died at ``point``, the ``number``th that was reached, and then at ``again``."""

    point: str
    number: int
    again: str | None
    what: str

    def to_json(self) -> dict[str, JsonValue]:
        return {"point": self.point, "number": self.number, "again": self.again, "what": self.what}


@dataclass
class SweepReport:
    """``points``: fault points of an undisturbed run; ``crashes``: kills, those in recovery counted."""

    points: int = 0
    crashes: int = 0
    by_point: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])

    def to_json(self) -> dict[str, Any]:
        return {
            "points": self.points, "crashes": self.crashes, "by_point": dict(sorted(self.by_point.items())),
            "violations": [v.to_json() for v in self.violations],
        }


def echo(call: FakeCall) -> JsonValue:
    """A fake agent that always answers the same to the same: its prompt, or the smallest value of its output type."""
    if call.output_schema is not None:
        return sample(call.output_schema)
    return f"{call.agent}:{digest([call.prompt, call.data])[:12]}"


async def sweep(
    program: str, input: JsonValue | Callable[[int], JsonValue] = None, *, respond: Respond = echo, max_points: int = 0, seed: int = 0,
    stride: int = 1, judge: Judge | None = None, say: Callable[[str], None] = lambda _: None, lab: Lab | None = None, **options: Any,
) -> SweepReport:
    """``max_points`` 0: all. ``input`` as a function gets the case's number, for programs that write where it says.
    ``judge`` says what else is wrong with a finished run."""
    if lab is None:
        async with open_lab(respond) as opened:
            return await _Sweep(opened, program, input, judge, options).run(max_points, seed, stride, say)
    return await _Sweep(lab, program, input, judge, options).run(max_points, seed, stride, say)


def chosen(counts: Counter[str], most: int, seed: int) -> list[tuple[str, int]]:
    """(point, which time it is reached), at most so many (0: all): every point once before any twice, in an order of the seed."""
    def rank(point: str, number: int) -> str:
        return digest([seed, point, number])

    queues = {point: sorted(range(1, count + 1), key=lambda n, p=point: rank(p, n)) for point, count in sorted(counts.items())}
    ranked = [(turn, rank(point, n), point, n) for point, numbers in queues.items() for turn, n in enumerate(numbers)]
    return sorted((point, n) for _, _, point, n in sorted(ranked)[: most or None])


class _Sweep:
    def __init__(self, lab: Lab, program: str, input: Any, judge: Judge | None, options: dict[str, Any]) -> None:
        self._lab = lab
        self._program = program
        self._input = input if callable(input) else lambda _: input
        self._judge = judge
        self._options = options
        self._report = SweepReport()
        self._expected: tuple[Any, ...] = ()
        self._counts: Counter[str] = Counter()
        self._compare_result = True

    async def run(self, max_points: int, seed: int, stride: int, say: Callable[[str], None]) -> SweepReport:
        await self._reference()
        places = chosen(self._counts, max_points, seed)[::stride]
        for place, (point, number) in enumerate(places):
            await self._case(place + 1, point, number, random.Random(f"{seed}/{point}/{number}").randint(1, AGAIN_WITHIN))
            if place % 20 == 19:
                say(f"{place + 1} of {len(places)} points, {self._report.crashes} crashes, {len(self._report.violations)} violations")
        return self._report

    async def _reference(self) -> None:
        """Two undisturbed runs: what must come out, and how many points there are."""
        first, count = await self._undisturbed(0)
        second, _ = await self._undisturbed(-1)
        self._report.points = sum(count.values())
        self._counts = count
        self._expected = (first.state, first.outcome, (first.reason or {}).get("code"), first.result)
        self._compare_result = first.result == second.result

    async def _undisturbed(self, number: int) -> tuple[RunRecord, Counter[str]]:
        run_id = await self._lab.start(self._program, self._input(number), **self._options)
        faults = Crash(0)
        await self._lab.crash(run_id, 0, faults=faults, parking=STAY)
        return await self._finish(run_id), faults.counts

    async def _finish(self, run_id: str) -> RunRecord:
        """Drives the run to its end; every question is answered with its first option."""
        run = await self._lab.journal.get_run(run_id)
        for _ in range(ROUNDS):
            for ask in await self._lab.journal.asks(run_id=run_id):
                value = ask.options[0] if ask.options else sample(ask.schema) if ask.schema else "yes"
                await self._lab.journal.answer(ask.ask_id, value, by="sweep", channel="sweep", at=self._lab.clock.now())
            run = await self._lab.drive(run_id, parking=STAY)  # also a finished one: it removes what a kill left behind
            if run.state in FINAL_STATES:
                break
        return run

    async def _case(self, case: int, point: str, number: int, again: int) -> None:
        given = self._input(case)
        run_id = await self._lab.start(self._program, given, **self._options)
        where = await self._lab.crash(run_id, number, faults=Crash(number, point), parking=STAY)
        if where is None:
            return
        completed, made = await self._calls(run_id), len(self._lab.harness.calls)
        second = await self._lab.crash(run_id, again, parking=STAY)
        self._report.crashes += 1 + (second is not None)
        self._report.by_point[where] += 1
        run = await self._finish(run_id)
        wrong = self._differences(run) + await self._repeats(run_id, completed, made) + await self._left(run_id)
        wrong += self._judge(run, given) if self._judge is not None else []
        self._report.violations += [Violation(where, number, second, what) for what in wrong]

    def _differences(self, run: RunRecord) -> list[str]:
        state, outcome, code, result = self._expected
        got = (run.state, run.outcome, (run.reason or {}).get("code"))
        wrong = [f"ended {got}, undisturbed {(state, outcome, code)}: {run.reason}"] if got != (state, outcome, code) else []
        if self._compare_result and not wrong and run.result != result:
            wrong.append(f"result {run.result!r}, undisturbed {result!r}")
        return wrong

    async def _calls(self, run_id: str, *, only_ok: bool = True) -> Counter[tuple[str, int]]:
        rows: list[EffectRow] = await self._lab.journal.effects(run_id)
        agents = {row.key: agent_name(row.scope, row.name) for row in rows if row.kind == "agent"}
        models = [row for row in rows if row.kind == "model" and (row.status == "ok" or not only_ok)]
        return Counter((agents.get(row.parent or "", ""), int(row.name.removeprefix("t"))) for row in models)

    async def _repeats(self, run_id: str, completed: Counter[tuple[str, int]], made: int) -> list[str]:
        """No model call that was recorded as completed is made again. One in flight is, once for each of the two kills."""
        rows = await self._calls(run_id, only_ok=False)
        later = Counter((agent, turn) for agent, _, turn in self._lab.harness.calls[made:])
        again = [call for call, count in later.items() if count > 2 * max(rows[call] - completed[call], 0)]
        return [f"made again although completed: {again}"] if again else []

    async def _left(self, run_id: str) -> list[str]:
        journal = self._lab.journal
        left = {"questions": await journal.asks(run_id=run_id), "timers": await journal.timers(run_id)}
        lease = await journal.lease(run_id)
        return [f"left behind: {name}" for name, found in left.items() if found] + (["left behind: a lease"] if lease else [])


