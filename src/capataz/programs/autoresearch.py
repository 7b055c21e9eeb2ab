"""Autoresearch: one experiment after the other, each by a fresh agent; a measured number decides what is kept."""

from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import Field, field_validator

from capataz import artifact, checkpoint, coding, program, scope
from capataz.contracts.canonical import to_json
from capataz.contracts.coding import CodingJob, JobOptions, Measurement, Promotion
from capataz.contracts.errors import (
    BudgetExhausted,
    OrchestrationError,
    ProviderRejected,
    ProviderUnavailable,
    SandboxFailed,
    SandboxUnavailable,
    SetupFailed,
)
from capataz.contracts.records import Candidate, Record
from capataz.programs.attempt import ENDS_ALL, attempt, compact, tail
from capataz.programs.prompting import render
from capataz.programs.ralph import protected

INFRA = (ProviderRejected, ProviderUnavailable, SandboxFailed, SandboxUnavailable, SetupFailed)
MAX_INFRA = 3
"""So many ``infra_fail`` in a row end the run: another experiment would say nothing."""


class AutoresearchInput(Record):
    """``metric``: a regular expression with one group, the number; its last match in what ``measure`` prints counts."""

    repository: str = "."
    goal: str = Field(min_length=1)
    measure: str = Field(min_length=1)
    metric: str = r"^(-?[0-9.]+(?:[eE][-+]?[0-9]+)?)$"
    direction: Literal["minimise", "maximise"] = "minimise"
    max_experiments: int = Field(default=10, ge=1, le=10_000)
    min_gain: float = Field(default=0, ge=0)   # what is not better by more than this is not kept
    measure_timeout_s: float = Field(default=600, gt=0)
    protect: list[str] = []                    # globs that no experiment may change: what measures, and its data
    base: str | None = None
    model: str | None = None
    max_turns: int = Field(default=40, ge=1)

    @field_validator("metric")
    @classmethod
    def _one_group(cls, value: str) -> str:
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        if groups != 1:
            raise ValueError("write exactly one group, around the number")
        return value


class Setup(Record):
    """The gate: nothing is tried before the unchanged files could be measured."""

    ready: bool
    baseline: float | None = None
    problem: str | None = None


class Experiment(Record):
    """``ok``: measured. ``crash``: the agent or its change failed. ``infra_fail``: provider or sandbox failed, the idea is untried."""

    number: int
    status: Literal["ok", "crash", "infra_fail"]
    kept: bool = False
    value: float | None = None
    summary: str = ""
    error: str | None = None
    sha: str | None = None


class AutoresearchResult(Record):
    """``head``: the best commit; it is what ``promotion`` put on ``capataz/RUN``, or the base when nothing was better."""

    outcome: Literal["improved", "not_improved", "setup_failed", "infra_failed", "budget_exhausted"]
    setup: Setup
    head: str
    best: float | None = None
    history: list[Experiment] = []
    promotion: Promotion | None = None


class _Lab:
    """Where the research stands. The branch only ever moves forward to a better candidate."""

    def __init__(self, input: AutoresearchInput, job: CodingJob, best: float) -> None:
        self.input = input
        self.job = job
        self.best = best
        self.head = job.request.base_sha
        self.tree: str | None = None
        self.promotion: Promotion | None = None
        self.history: list[Experiment] = []

    def better(self, value: float) -> bool:
        gain = self.best - value if self.input.direction == "minimise" else value - self.best
        return gain > self.input.min_gain

    def stalled(self) -> bool:
        last = self.history[-MAX_INFRA:]
        return len(last) == MAX_INFRA and all(done.status == "infra_fail" for done in last)


@program
async def autoresearch(input: AutoresearchInput) -> AutoresearchResult:
    """Improves a measured number by experiments of fresh agents; code keeps or reverts each, and the branch is always the best."""
    options = JobOptions(model=input.model, max_turns=input.max_turns)
    job = protected(await coding.job(input.repository, input.goal, base=input.base, options=options), input.protect)
    setup = _gate(input, await coding.measure(job, input.measure, sha=job.request.base_sha, timeout_s=input.measure_timeout_s))
    if setup.baseline is None:
        return AutoresearchResult(outcome="setup_failed", setup=setup, head=job.request.base_sha)
    lab = _Lab(input, job, setup.baseline)
    stopped: Literal["infra_failed", "budget_exhausted"] | None = None
    for number in range(input.max_experiments):
        try:
            await _experiment(lab, number)
        except BudgetExhausted:
            stopped = "budget_exhausted"
            break
        if lab.stalled():
            stopped = "infra_failed"
            break
    await artifact("results.tsv", _table(setup.baseline, lab.history), "text/tab-separated-values")
    return AutoresearchResult(
        outcome=stopped or ("improved" if lab.promotion is not None else "not_improved"),
        setup=setup,
        head=lab.head,
        best=lab.best,
        history=lab.history,
        promotion=lab.promotion,
    )


async def _experiment(lab: _Lab, number: int) -> None:
    async with scope(f"experiment-{number}"):
        done, candidate = await _tried(lab, number)
        if done.kept and candidate is not None and done.value is not None:
            lab.promotion = await coding.publish(lab.job, candidate, expected_old=lab.promotion.new if lab.promotion else None)
            lab.head, lab.tree, lab.best = candidate.sha, candidate.tree, done.value
        lab.history.append(done)
        await checkpoint(f"Experiment {number}: {done.status}, {'kept' if done.kept else 'reverted'}", to_json(done))


async def _tried(lab: _Lab, number: int) -> tuple[Experiment, Candidate | None]:
    """An error leaves the head where it is: the next agent begins with the best files again."""
    try:
        candidate, summary = await _change(lab, number)
        measured = await coding.measure(lab.job, lab.input.measure, sha=candidate.sha, timeout_s=lab.input.measure_timeout_s)
    except INFRA as error:
        return Experiment(number=number, status="infra_fail", error=compact(error)), None
    except ENDS_ALL:
        raise
    except OrchestrationError as error:
        return Experiment(number=number, status="crash", error=compact(error)), None
    value, problem = _value(lab.input, measured)
    if value is None:
        return Experiment(number=number, status="crash", summary=summary, error=problem, sha=candidate.sha), None
    kept = candidate.tree != lab.tree and lab.better(value)
    return Experiment(number=number, status="ok", kept=kept, value=value, summary=summary, sha=candidate.sha), candidate


async def _change(lab: _Lab, number: int) -> tuple[Candidate, str]:
    data = {
        "goal": lab.input.goal,
        "measure": lab.input.measure,
        "direction": lab.input.direction,
        "best": lab.best,
        "history": to_json(lab.history[-50:]),
    }
    prompt = render(lab.job.policy.prompts, "experiment")
    return await attempt(lab.job, "experimenter", prompt=prompt, data=data, base_sha=lab.head, number=number)


def _gate(input: AutoresearchInput, measured: Measurement) -> Setup:
    value, problem = _value(input, measured)
    return Setup(ready=value is not None, baseline=value, problem=problem)


def _value(input: AutoresearchInput, measured: Measurement) -> tuple[float | None, str | None]:
    """The number, or why there is none."""
    if not measured.passed:
        return None, f"the command ended with {measured.exit_code} ({measured.reason}): {tail(measured.output)}"
    found = [match[1] for match in re.finditer(input.metric, measured.output, re.MULTILINE)]
    try:
        value = float(found[-1]) if found else math.nan
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        return None, f"no number matches {input.metric!r} in what the command printed: {tail(measured.output)}"
    return value, None


def _table(baseline: float, history: list[Experiment]) -> str:
    rows = [("experiment", "status", "kept", "value", "commit", "summary"), ("baseline", "ok", "yes", repr(baseline), "", "")]
    rows += [_row(done) for done in history]
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)


def _row(done: Experiment) -> tuple[str, ...]:
    value = "" if done.value is None else repr(done.value)
    said = done.summary if done.error is None else f"{done.summary} {done.error}"
    return str(done.number), done.status, "yes" if done.kept else "no", value, (done.sha or "")[:12], said
