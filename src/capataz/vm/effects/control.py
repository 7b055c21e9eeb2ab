"""Control: budgets of scopes, handles, child programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError, ChildFailed
from capataz.contracts.journal import Batch
from capataz.vm.committer import Part
from capataz.vm.effect import Done, Effect
from capataz.vm.effects.loaded import sources_of_child
from capataz.vm.keys import child_scope

if TYPE_CHECKING:
    from capataz.vm.run import Run


def budget(run: Run, effect: Effect) -> Done:
    limit = run.accounts.limit(effect.scope, effect.input)
    return Done(parts=(Part(Batch(accounts=(limit,))),))


def control(run: Run, effect: Effect) -> Done:
    """The result of a handle's method; what it does to the other effect is applied by ``observe``, also at replay."""
    target = effect.instance.effects.get(effect.input["target"])
    if effect.input["op"] != "status":
        return Done()
    if target is None:
        return Done({"state": "finished", "waiting": None})  # of an epoch that is over
    state = "finished" if target.ended else "waiting" if target.waiting else "running" if target.task else "queued"
    return Done({"state": state, "waiting": target.waiting})


def apply(run: Run, effect: Effect) -> None:
    """Steers the target of a handle's method."""
    target = effect.instance.effects.get(effect.input["target"])
    if target is None:
        return
    match effect.input["op"]:
        case "notify":
            run.inbox.note(target.key, effect.key, effect.input["text"])
        case "pause":
            target.paused.clear()
        case "resume":
            target.paused.set()
        case _:
            pass


def loop(run: Run, effect: Effect) -> Done:
    """A loop is reached: nothing more than a name for its lane (``vm.lanes``)."""
    return Done()


def epoch(run: Run, effect: Effect) -> Done:
    """The first epoch of a loop; later ones begin by a turn (``Instance``)."""
    return Done({"epoch": 0, **effect.args})


async def perform_child(run: Run, effect: Effect) -> Done:
    """A program as a child: a process and an order of its own, in the same run and journal."""
    from capataz.vm.instance import Instance

    scope = child_scope(effect.identity)
    ref, files = await sources_of_child(run, effect)
    start: dict[str, Any] = {
        "ref": ref, "files": files, "input": effect.input["input"],
        "seed": run.seed, "now": effect.started_at, "path": [],
    }
    if (limits := effect.args.get("budget")) is not None:
        run.open_account(scope, limits)
    try:
        result: JsonValue = await run.execute(Instance(run, parent=effect.key, scope=scope, start=start))
    except CapatazError as error:
        raise ChildFailed(f"{effect.name}: {error.message}", reason=error.to_json()) from error
    return Done(result)
