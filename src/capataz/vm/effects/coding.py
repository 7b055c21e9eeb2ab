"""``coding.VERB``: the kernel performs them through the coding port, records in and records out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from capataz.contracts.canonical import JsonValue, to_json
from capataz.contracts.coding import CodingContext, CodingPort, Measurement
from capataz.contracts.errors import ProgramError
from capataz.contracts.journal import Batch, Usage
from capataz.contracts.records import Candidate, TestReport
from capataz.vm.committer import Part
from capataz.vm.effect import Completion, Done, Effect

if TYPE_CHECKING:
    from capataz.vm.run import Run

VERBS = ("plan_check", "workspace", "freeze", "compose", "test", "manifest", "envelope", "promote", "rebase", "job", "cite", "measure", "publish")
EXTERNAL = frozenset({"promote", "publish"})


def freeze_identity(run: Run, input: Any) -> JsonValue:
    return {**input, "end_tree": run.trees.get(input["workspace"]["workspace_id"])}


def context(run: Run, effect: Effect) -> CodingContext:
    started = run.record.started_at if run.record.started_at is not None else run.record.created_at
    return CodingContext(
        run_id=run.run_id, effect=effect.key, started_at=started,
        emit=lambda type, data: run.emit(type, effect.key, data),
    )


async def perform(run: Run, effect: Effect) -> Done:
    verb = effect.kind.removeprefix("coding.")
    if verb not in VERBS:
        raise ProgramError(f"coding.{verb} is no verb; there are {', '.join(VERBS)}")
    method = getattr(run.ports.coding, verb)
    arguments = typed_arguments(verb, effect.input)
    if verb == "freeze":
        arguments["end_tree"] = run.trees.get(arguments["workspace"].workspace_id)
        async with run.writing(arguments["workspace"].workspace_id):
            return Done(to_json(await method(context(run, effect), **arguments)))
    if verb == "envelope":
        arguments["usage"] = await _usage_so_far(run)
    if verb in EXTERNAL:
        await run.orphans.pass_(effect)
        # An external write needs more than a fenced journal: make sure that the lease is ours just before it.
        await run.renew()
    if verb == "job":
        arguments["repository"] = str(Path(str(run.options.get("cwd") or "/")) / arguments["repository"])
    record = await method(context(run, effect), **arguments)
    return Done(to_json(record), await _usage(run, record))


async def _usage_so_far(run: Run) -> dict[str, JsonValue]:
    """What the run has cost until now: recorded with the envelope, so that it is the same at each replay."""
    await run.committer.flush()
    return (await run.ports.journal.usage(run.run_id)).to_json()


def typed_arguments(verb: str, input: dict[str, JsonValue]) -> dict[str, Any]:
    """The JSON arguments as the port's types. Raises ``ProgramError`` for others."""
    hints = _hints(verb)
    unknown = set(input) - set(hints)
    if unknown:
        raise ProgramError(f"coding.{verb} takes no {', '.join(sorted(unknown))}")
    try:
        return {name: TypeAdapter(hints[name]).validate_python(value) for name, value in input.items()}
    except ValidationError as error:
        first = error.errors()[0]
        raise ProgramError(f"coding.{verb}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


_HINTS: dict[str, dict[str, Any]] = {}


def _hints(verb: str) -> dict[str, Any]:
    from typing import get_type_hints

    if verb not in _HINTS:
        hints = get_type_hints(getattr(CodingPort, verb))
        _HINTS[verb] = {k: v for k, v in hints.items() if k not in ("ctx", "return", "end_tree", "usage")}
    return _HINTS[verb]


async def _usage(run: Run, record: Any) -> Usage:
    """Seconds of suites, and the bytes of what the effect stored for people to read."""
    if isinstance(record, TestReport):
        sizes = [len(await run.ports.blobs.get(suite.artifact_uri)) for suite in record.suites]
        return Usage(sandbox_s=sum(suite.duration for suite in record.suites), artifact_bytes=sum(sizes))
    if isinstance(record, Candidate):
        return Usage(artifact_bytes=len(await run.ports.blobs.get(record.diff_uri)))
    if isinstance(record, Measurement):
        return Usage(sandbox_s=record.duration_s)
    return Usage()


# ---- events ------------------------------------------------------------------------------------


def _event(make: Callable[[Completion], list[tuple[str, dict[str, Any]]]]) -> Callable[[Run, Completion], Part]:
    def part(run: Run, completion: Completion) -> Part:
        if completion.status != "ok":
            return Part()
        return Part(events=tuple((type, completion.effect.key, data) for type, data in make(completion)))

    return part


def _freeze(completion: Completion) -> list[tuple[str, dict[str, Any]]]:
    record = completion.done.result
    return [("workspace.frozen", {k: record[k] for k in ("workspace_id", "task_id", "tree", "changed_files")})]


def _envelope(completion: Completion) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("review.ended", {"reviewer": name, "passed": review["candidate_passed"], "blocking_issues": review["blocking_issues"]})
        for name, review in completion.done.result["reviews"].items()
    ]


def _compose(run: Run, completion: Completion) -> Part:
    if completion.status != "ok":
        return Part()
    candidate = completion.done.result
    return Part(Batch(candidates=(candidate,)), (("candidate.composed", completion.effect.key, {"candidate": candidate}),))


def _promote(run: Run, completion: Completion) -> Part:
    if completion.status != "ok":
        return Part()
    done = completion.done.result
    envelope = completion.effect.input["envelope"]
    row = {"candidate_id": envelope["candidate_id"], "ref": done["ref"], "old": done["old"], "new": done["new"]}
    data = {k: done[k] for k in ("ref", "old", "new", "note")}
    return Part(Batch(promotions=(row,)), (("promotion.done", completion.effect.key, data),))


def _publish(completion: Completion) -> list[tuple[str, dict[str, Any]]]:
    """No row of ``promotions``: these are of envelopes that passed."""
    return [("promotion.done", {k: completion.done.result[k] for k in ("ref", "old", "new", "note")})]


AT_COMPLETION: dict[str, Callable[[Run, Completion], Part]] = {
    "coding.freeze": _event(_freeze),
    "coding.envelope": _event(_envelope),
    "coding.compose": _compose,
    "coding.promote": _promote,
    "coding.publish": _event(_publish),
}
