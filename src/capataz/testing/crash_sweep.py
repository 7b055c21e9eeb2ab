"""Crash sweep: a program is killed at every fault point, killed again in recovery, and must end as if nothing had happened.

Here in memory, with fake agents; ``crash_real`` does the same with processes, a database and SIGKILL. A seed gives the same
kills again; so does a case's number.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.journal import FINAL_STATES, Journal, RunRecord, Usage
from capataz.testing.crash_watch import ALL, Watch
from capataz.testing.fake_agents import FakeCall, Respond
from capataz.testing.lab import Crash, Lab, open_lab
from capataz.testing.samples import sample
from capataz.testing.turns import Turns
from capataz.vm.ports import Parking

STAY = Parking(sleeps_over_s=3600.0)
AGAIN_WITHIN = 8        # fault points of the recovery, one of which kills it again
ROUNDS = 40             # of answers to a parked run
GRACE_S = 5.0           # for killed program processes to be gone
Judge = Callable[[Lab, RunRecord, JsonValue], Awaitable[list[str]]]
"""What else is wrong with a finished run, which got this input."""


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
    """``points``: fault points of an undisturbed run; ``crashes``: kills, those in recovery counted; ``recoveries``: only those."""

    points: int = 0
    crashes: int = 0
    recoveries: int = 0
    by_point: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])

    def to_json(self) -> dict[str, Any]:
        return {
            "points": self.points, "crashes": self.crashes, "recoveries": self.recoveries, "by_point": dict(sorted(self.by_point.items())),
            "violations": [v.to_json() for v in self.violations],
        }


def echo(call: FakeCall) -> JsonValue:
    """A fake agent that always answers the same to the same: its prompt, or the smallest value of its output type."""
    if call.output_schema is not None:
        return sample(call.output_schema)
    return f"{call.agent}:{digest([call.prompt, call.data])[:12]}"


async def sweep(
    program: str, input: JsonValue | Callable[[int], JsonValue] = None, *, respond: Respond = echo, max_points: int = 0, seed: int = 0,
    stride: int = 1, lanes: int = 1, judge: Judge | None = None, ledger: Callable[[JsonValue], Path] | None = None,
    compare_result: bool = True, parking: Parking = STAY, journal: Journal | None = None, say: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> SweepReport:
    """``max_points`` 0: all. ``input`` as a function gets the case's number, for programs that write where it says.

    ``seed`` decides the places, the order in which agents are answered, and where recovery is killed. ``lanes``: cases at once.
    ``ledger``: where the steps of a run with this input write their names. ``compare_result`` False: it may depend on the order.
    """
    told = Case(program, input if callable(input) else lambda _: input, judge, ledger, compare_result, parking, options)
    async with open_lab(Turns(seed, respond), journal=journal) as lab:
        return await _Sweep(lab, told, seed, say).run(max_points, stride, lanes)


def chosen(counts: Counter[str], most: int, seed: int) -> list[tuple[str, int]]:
    """(point, which time it is reached), at most so many (0: all): every point once before any twice, in an order of the seed."""
    def rank(point: str, number: int) -> str:
        return digest([seed, point, number])

    queues = {point: sorted(range(1, count + 1), key=lambda n, p=point: rank(p, n)) for point, count in sorted(counts.items())}
    ranked = [(turn, rank(point, n), point, n) for point, numbers in queues.items() for turn, n in enumerate(numbers)]
    return sorted((point, n) for _, _, point, n in sorted(ranked)[: most or None])


@dataclass(frozen=True, slots=True)
class Case:
    """What is swept, and what must hold of it (see ``sweep``)."""

    program: str
    input: Callable[[int], JsonValue]
    judge: Judge | None
    ledger: Callable[[JsonValue], Path] | None
    compare_result: bool
    parking: Parking
    options: dict[str, Any]


class _Sweep:
    def __init__(self, lab: Lab, case: Case, seed: int, say: Callable[[str], None]) -> None:
        self._lab = lab
        self._of = case
        self._seed = seed
        self._say = say
        self._report = SweepReport()
        self._expected: tuple[Any, ...] = ()
        self._compare_result = case.compare_result

    async def run(self, max_points: int, stride: int, lanes: int) -> SweepReport:
        places = chosen(await self._reference(), max_points, self._seed)[::stride]
        todo = list(enumerate(places, 1))[::-1]
        await asyncio.gather(*(self._lane(self._lab.beside(), todo, len(places)) for _ in range(lanes)))
        left = await self._processes_left()
        self._report.violations += [Violation("", 0, None, f"left behind: process {pid}") for pid in left]
        return self._report

    async def _lane(self, lab: Lab, todo: list[tuple[int, tuple[str, int]]], places: int) -> None:
        while todo:
            number, (point, reached) = todo.pop()
            again = random.Random(f"{self._seed}/{point}/{reached}").randint(1, AGAIN_WITHIN)
            await self._case(lab, number, point, reached, again)
            if number % 20 == 0:
                self._say(f"{number} of {places} points, {self._report.crashes} crashes, {len(self._report.violations)} violations")

    async def _reference(self) -> Counter[str]:
        """Two undisturbed runs: what must come out, and how many points there are."""
        first, count = await self._undisturbed(0)
        second, _ = await self._undisturbed(-1)
        self._report.points = sum(count.values())
        self._expected = (first.state, first.outcome, (first.reason or {}).get("code"), first.result)
        self._compare_result = self._compare_result and first.result == second.result
        return count

    async def _undisturbed(self, number: int) -> tuple[RunRecord, Counter[str]]:
        given = self._of.input(number)
        run_id = await self._lab.start(self._of.program, given, **self._of.options)
        faults = Crash(0)
        await self._carry(self._lab, run_id, faults)
        run = await self._lab.journal.get_run(run_id)
        wrong = await self._of.judge(self._lab, run, given) if self._of.judge is not None else []
        if run.state not in FINAL_STATES or wrong:
            raise AssertionError(f"the undisturbed run is wrong already: {run.state} {run.reason} {run.waiting} {wrong}")
        return run, faults.counts

    async def _carry(self, lab: Lab, run_id: str, faults: Crash) -> str | None:
        """Drives the run until it is killed or ends; every question is answered with its first option.

        Also a finished run is driven: that removes what a kill left behind.
        """
        for _ in range(ROUNDS):
            for ask in await lab.journal.asks(run_id=run_id):
                value = ask.options[0] if ask.options else sample(ask.schema) if ask.schema else "yes"
                await lab.journal.answer(ask.ask_id, value, by="sweep", channel="sweep", at=lab.clock.now())
            await lab.crash(run_id, 0, faults=faults, parking=self._of.parking)
            if faults.where is not None or (await lab.journal.get_run(run_id)).state in FINAL_STATES:
                break
        return faults.where

    async def _case(self, lab: Lab, case: int, point: str, number: int, again: int) -> None:
        given = self._of.input(case)
        run_id = await lab.start(self._of.program, given, **self._of.options)
        watch = Watch(lab, run_id, self._of.ledger(given) if self._of.ledger is not None else None)
        killed: list[str | None] = []
        for faults in (Crash(number, point), Crash(again), Crash(0)):
            await watch.begin()
            killed.append(await self._carry(lab, run_id, faults))
            watch.end()
            if killed[0] is None:
                return                         # the point was not reached so often this time
        self._report.crashes += 1 + (killed[1] is not None)
        self._report.recoveries += killed[1] is not None
        self._report.by_point[point] += 1
        run = await lab.journal.get_run(run_id)
        wrong = [*self._differences(run), *await watch.judge(), *await _left(lab, run_id)]
        wrong += await self._of.judge(lab, run, given) if self._of.judge is not None else []
        self._report.violations += [Violation(point, number, killed[1], what) for what in wrong]

    def _differences(self, run: RunRecord) -> list[str]:
        state, outcome, code, result = self._expected
        got = (run.state, run.outcome, (run.reason or {}).get("code"))
        wrong = [f"ended {got}, undisturbed {(state, outcome, code)}: {run.reason}"] if got != (state, outcome, code) else []
        if self._compare_result and not wrong and run.result != result:
            wrong.append(f"result {run.result!r}, undisturbed {result!r}")
        return wrong

    async def _processes_left(self) -> list[int]:
        until = asyncio.get_running_loop().time() + GRACE_S
        while (left := self._lab.processes()) and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(0.02)
        return left


async def _left(lab: Lab, run_id: str) -> list[str]:
    journal = lab.journal
    asks = await journal.asks(run_id=run_id, open_only=False)
    twice = [effect for effect, count in Counter(ask.effect for ask in asks).items() if count > 1]
    ends = [event for event in await journal.events(run_id, limit=ALL) if event.type == "run.ended"]
    left = {
        "questions": await journal.asks(run_id=run_id), "timers": await journal.timers(run_id), "a lease": await journal.lease(run_id),
        "questions asked twice": twice, "ends told twice": ends[1:],
        "reservations": [a.account for a in await journal.accounts(run_id) if a.reserved != Usage()],
    }
    return [f"left behind: {name}" for name, found in left.items() if found]
