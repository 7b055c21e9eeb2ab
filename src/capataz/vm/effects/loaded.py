"""The sources of child programs: those of their parent, or for ``load(...)`` their own, checked and pinned at first use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from capataz.contracts.canonical import digest
from capataz.contracts.errors import ChildInvalid, NotFound, ProgramLoadError
from capataz.contracts.journal import Batch, EffectCompleted, EffectRequested
from capataz.vm.closure import Source, find
from capataz.vm.committer import Part
from capataz.vm.keys import sub_key

if TYPE_CHECKING:
    from capataz.vm.effect import Effect
    from capataz.vm.run import Run

KIND = "source"
"""The sub-effect of a child that says which sources were pinned for it."""


async def sources_of_child(run: Run, effect: Effect) -> tuple[str, dict[str, str]]:
    """``module:name`` and the closure that it is in. Raises ``ChildInvalid`` with the checker's findings in ``details``."""
    ref = str(effect.input["program"])
    if not effect.args.get("loaded"):
        return ref, await _parents(run, effect)
    if run.options.get("untrusted"):
        raise ChildInvalid(f"the child program {ref} is refused: an untrusted program may not load files; import what it needs", findings=[])
    key = sub_key(effect.key, KIND, ref, digest(ref))
    row = run.history.finished(key)
    if row is not None:
        return row.result["ref"], await run.ports.journal.get_source(row.result["digest"])
    source = await asyncio.to_thread(_found, ref, Path(str(run.options.get("cwd") or "/")))
    await run.ports.journal.put_source(source.digest, source.files)
    await run.committer.durable(Part(_pin(effect, key, ref, source, run.now())))
    return source.ref, source.files


async def _parents(run: Run, effect: Effect) -> dict[str, str]:
    """The closure of the program that asks: a loaded one brings its own."""
    given = effect.instance.sources
    return given if given is not None else await run.ports.journal.get_source(run.record.source_digest)


def _found(ref: str, folder: Path) -> Source:
    from capataz.vm.checker import check_source

    try:
        source = find(ref, cwd=folder)
        report = check_source(source, ref, cwd=folder)
    except (NotFound, ProgramLoadError) as error:
        raise ChildInvalid(f"the child program {ref} cannot be used: {error.message}", findings=[]) from error
    if report.errors:
        first, count = report.errors[0], len(report.errors)
        said = f"{first.place}: {first.code} {first.message}" + (f" (and {count - 1} more)" if count > 1 else "")
        raise ChildInvalid(f"the child program {ref} is refused: {said}", findings=[f.to_json() for f in report.errors])
    return source


def _pin(effect: Effect, key: str, ref: str, source: Source, now: float) -> Batch:
    requested = EffectRequested(
        key=key, parent=effect.key, scope=effect.scope, kind=KIND, name=ref, input_digest=digest(ref), ordinal=0, request_no=None,
        input={"program": ref}, started_at=now,
    )  # fmt: skip
    completed = EffectCompleted(
        key=key, status="ok", delivery_no=None, result={"ref": source.ref, "digest": source.digest}, ended_at=now
    )
    return Batch(requested=(requested,), completed=(completed,))
