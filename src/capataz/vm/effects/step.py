"""Steps: the program's own code with side effects, run once in a child of its process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import DeadlineExceeded, EffectInDoubt
from capataz.vm.effect import Done, Effect

if TYPE_CHECKING:
    from capataz.vm.run import Run


async def perform(run: Run, effect: Effect) -> Done:
    if effect.repeated and not effect.args.get("idempotent", True):
        decided = await _decision(run, effect)
        if "result" in decided:
            return Done(decided["result"])
    run.ports.faults.reach("step.before")
    try:
        async with asyncio.timeout(effect.args.get("timeout_s")):
            result = await effect.instance.fork(effect.no, run.ports.step_env())
    except TimeoutError:
        raise DeadlineExceeded(f"step {effect.name} did not end within {effect.args['timeout_s']:g} s") from None
    run.ports.faults.reach("step.after")
    return Done(result)


async def _decision(run: Run, effect: Effect) -> dict[str, JsonValue]:
    """Waits for ``capataz resolve RUN KEY --redo | --result JSON`` (VM.md, promise 6)."""
    if run.inbox.resolution(effect.key) is None:
        doubt = EffectInDoubt(
            f"step {effect.name} was under way when its worker died; did it happen? "
            f"capataz resolve {run.run_id} '{effect.key}' --redo | --result JSON", effect=effect.key,
        )
        effect.waiting = {"on": "message", "doubt": doubt.message, "key": effect.key}
        run.note_idle()
    try:
        decided = await run.inbox.until(lambda: run.inbox.resolution(effect.key), None)
    finally:
        effect.waiting = None
    return decided if isinstance(decided, dict) else {}
