"""The test report of a candidate: its suites, run by the runtime, and what their guards found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import canonical_bytes, digest
from capataz.contracts.coding import CodingContext, CodingJob
from capataz.contracts.errors import UnknownSuite
from capataz.contracts.faults import Faults
from capataz.contracts.policy import Policy, Suite
from capataz.contracts.records import Candidate, SuiteResult, TestReport
from capataz.contracts.workspace import Change, RunRepository
from capataz.evidence.environment import EnvironmentSpec
from capataz.evidence.guard import Guarded, edited_tests, guard_suite
from capataz.evidence.suites import Bench, SuiteRun, run_suite
from capataz.evidence.testids import TestIds


async def base_scripts(run: RunRepository, tree: str) -> dict[str, str]:
    """``scripts`` of the base's package.json: what ``npm test`` stands for."""
    try:
        scripts = json.loads(await run.read(tree, b"package.json") or b"{}").get("scripts", {})
        return {k: v for k, v in scripts.items() if isinstance(v, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def suites_to_run(policy: Policy, suite_ids: list[str]) -> list[Suite]:
    """The required ones and those named, in the policy's order. Raises ``UnknownSuite``."""
    wanted = {*policy.required_suite_ids(), *suite_ids}
    unknown = sorted(wanted - {s.id for s in policy.suites})
    if unknown:
        raise UnknownSuite(f"no suite {unknown[0]!r} is declared", suite=unknown[0])
    return [s for s in policy.suites if s.id in wanted]


class Tester:
    """Runs the suites of one candidate, one after the other."""

    def __init__(self, bench: Bench, ctx: CodingContext, job: CodingJob, *, blobs: Blobs, cache: Path, faults: Faults) -> None:
        self._bench = bench
        self._ctx = ctx
        self._job = job
        self._blobs = blobs
        self._cache = cache
        self._faults = faults
        self._new_tests = job.policy.require_new_tests or job.options.require_new_tests

    async def report(self, candidate: Candidate, suites: list[Suite]) -> TestReport:
        """Every suite that runs must pass for the report to pass."""
        changes = await self._bench.run.changes(self._bench.base, candidate.tree)
        results: list[SuiteResult] = []
        runs: list[SuiteRun] = []
        guards: list[Guarded] = []
        for suite in suites:
            result, run, guarded = await self._suite(candidate, suite, changes)
            results.append(result)
            runs.append(run)
            guards.append(guarded)
        if self._new_tests:
            results = _require_new_tests(results, runs, guards)
        for result in results:
            self._ctx.emit("suite.ended", _ended(result, candidate))
        ids = [r.tests for r in runs] + [_of(g) for g in guards]
        return sealed_report(
            candidate_id=candidate.id, candidate_sha=candidate.sha, tree=candidate.tree, suites=results,
            passed=bool(results) and all(r.passed for r in results),
            test_edits=edited_tests(self._job.policy.suites, changes, ids),
            notes=[*_notes(self._bench.environment, runs), *(n for g in guards for n in g.notes)],
            sandbox=_sandbox(self._bench.environment, runs),
        )

    async def _suite(self, candidate: Candidate, suite: Suite, changes: list[Change]) -> tuple[SuiteResult, SuiteRun, Guarded]:
        self._faults.reach("suite.before")
        run = await run_suite(self._bench, suite, candidate.tree)
        guarded = Guarded(findings=[], notes=[], base=None)
        if suite.required:
            guarded = await guard_suite(self._bench, suite, run, changes, cache=self._cache, need_ids=self._new_tests)
        result = SuiteResult(
            id=suite.id, command=suite.command, exit_code=run.exit_code, duration=run.duration_s,
            artifact_uri=await self._blobs.put(run.log), required=suite.required,
            passed=run.passed and not guarded.findings,
            reason="test_edits" if run.passed and guarded.findings else run.reason,
            findings=guarded.findings, tests_collected=len(run.tests.outcomes) if run.tests.listed else None,
        )
        self._faults.reach("suite.after")
        return result, run, guarded


def _require_new_tests(results: list[SuiteResult], runs: list[SuiteRun], guards: list[Guarded]) -> list[SuiteResult]:
    """At least one test id over all required suites must be new. Otherwise the required suites that passed fail."""
    asked = [i for i, r in enumerate(results) if r.required]
    base = {t for i in asked for t in _of(guards[i]).outcomes}
    found = {t for i in asked for t in runs[i].tests.outcomes}
    if found - base:
        return results
    listed = any(runs[i].tests.listed for i in asked)
    unlisted = "new tests are required and no suite's test ids can be listed"
    finding = "the candidate adds no test id over the base" if listed else unlisted
    update: dict[str, Any] = {"passed": False, "reason": "new_tests_missing"}
    return [
        r.model_copy(update={**update, "findings": [*r.findings, finding]}) if i in asked and r.passed else r
        for i, r in enumerate(results)
    ]


def _of(guarded: Guarded) -> TestIds:
    return guarded.base or TestIds()


def _ended(result: SuiteResult, candidate: Candidate) -> dict[str, Any]:
    return {
        "suite": result.id, "exit_code": result.exit_code, "duration_s": result.duration, "passed": result.passed,
        "artifact": result.artifact_uri, "candidate_id": candidate.id,
    }


def _notes(environment: EnvironmentSpec, runs: list[SuiteRun]) -> list[str]:
    notes = list(environment.notes)
    if any(r.backend == "local" for r in runs):
        notes.append("the suites ran without isolation (sandbox local, --trust-repository)")
    return notes


def _sandbox(environment: EnvironmentSpec, runs: list[SuiteRun]) -> dict[str, Any]:
    first = runs[0] if runs else None
    return {
        "backend": first.backend if first else None,
        "enforces": list(first.enforces) if first else [],
        "tools": environment.tools,
    }


def sealed_report(**fields: Any) -> TestReport:
    """A report with its digest: SHA-256 of the canonical JSON of everything else."""
    bare = TestReport(**fields, digest="")
    return bare.model_copy(update={"digest": digest(unsealed(bare))})


def unsealed(record: Any) -> dict[str, Any]:
    """The record's JSON without ``digest``: what the digest is of, and what the blob store keeps under it."""
    data: dict[str, Any] = record.model_dump(mode="json")
    data.pop("digest")
    return data


async def keep(blobs: Blobs, record: Any) -> None:
    """Stores a sealed record. A blob is named by its digest, so the record's own digest finds it again."""
    await blobs.put(canonical_bytes(unsealed(record)))
