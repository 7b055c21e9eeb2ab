"""Durable time: ``now``, ``sleep`` and the loop's own timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capataz.contracts.journal import Batch
from capataz.vm.committer import Part
from capataz.vm.effect import Completion, Done, Effect

if TYPE_CHECKING:
    from capataz.vm.run import Run


def now(run: Run, effect: Effect) -> Done:
    return Done(run.now())


def _due(effect: Effect) -> float:
    return effect.started_at + max(0.0, float(effect.input["seconds"]))


def sleep_at_request(run: Run, effect: Effect) -> Part:
    return Part(Batch(timers=((effect.key, _due(effect)),)))


def sleep_at_completion(run: Run, completion: Completion) -> Part:
    return Part(Batch(timers_done=(completion.effect.key,)))


async def perform_sleep(run: Run, effect: Effect) -> Done:
    due = _due(effect)
    effect.waiting = {"on": "sleep", "due": due}
    run.note_idle()
    try:
        await run.ports.clock.sleep(max(0.0, due - run.now()))
    finally:
        effect.waiting = None
    return Done()
