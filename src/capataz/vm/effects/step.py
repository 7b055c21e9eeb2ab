"""Steps: the program's own code with side effects, run once in a child of its process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from capataz.contracts.errors import DeadlineExceeded, EffectInDoubt
from capataz.contracts.journal import Batch, InboxItem
from capataz.vm.committer import Part
from capataz.vm.effect import Done, Effect

if TYPE_CHECKING:
    from capataz.vm.run import Run


async def perform(run: Run, effect: Effect) -> Done:
    if effect.repeated and not effect.args.get("idempotent", True):
        decided = await decision(run, effect, effect.key, f"step {effect.name}")
        mark = Part(Batch(inbox_done=run.inbox.resolved(effect.key)))
        if "result" in decided.body:
            return Done(decided.body["result"], parts=(mark,))
        await run.committer.durable(mark)  # before it runs again: killed then, it is in doubt anew
    run.ports.faults.reach("step.before")
    try:
        async with asyncio.timeout(effect.args.get("timeout_s")):
            result = await effect.instance.fork(effect.no, environment(run))
    except TimeoutError:
        raise DeadlineExceeded(f"step {effect.name} did not end within {effect.args['timeout_s']:g} s") from None
    run.ports.faults.reach("step.after")
    return Done(result)


def environment(run: Run) -> dict[str, str]:
    """What the function of a step or a tool sees. A step of an untrusted program runs in its sandbox and is told nothing of the worker's."""
    if run.options.get("untrusted"):
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "PWD": "/tmp"}
    return {**run.ports.step_env(), "PWD": str(run.options.get("cwd") or "/")}


async def decision(run: Run, effect: Effect, key: str, what: str) -> InboxItem:
    """Waits for ``capataz resolve RUN KEY --redo | --result JSON``."""
    if run.inbox.resolution(key) is None:
        doubt = EffectInDoubt(
            f"{what} was under way when its worker died; did it happen? "
            f"capataz resolve {run.run_id} '{key}' --redo | --result JSON", effect=key,
        )
        wait = {"on": "message", "doubt": doubt.message, "key": key}
        with run.waiting_for(wait, effect):
            await run.inbox.until(lambda: run.inbox.resolution(key), None)
    decided = run.inbox.resolution(key)
    assert decided is not None
    return decided
