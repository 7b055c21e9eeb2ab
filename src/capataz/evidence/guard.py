"""The guard of required suites: a candidate may not pass by weakening the tests that judge it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from capataz.contracts.canonical import canonical_text, digest
from capataz.contracts.globs import matches_any
from capataz.contracts.policy import Suite
from capataz.contracts.workspace import Change
from capataz.evidence.scopes import show
from capataz.evidence.suites import Bench, SuiteRun, run_suite
from capataz.evidence.testids import TestIds, lost_tests

CACHE_VERSION = 2
_TEST_FILE = re.compile(
    rb"(?:.*/)?(?:test_[^/]*|[^/]*_test|conftest)\.py|(?:.*/)?[^/]*[._](?:test|spec)\.[^/]+|(?:.*/)?(?:tests?|__tests__|spec)/.*"
    rb"|(?:.*/)?[^/]*_test\.go|(?:.*/)?[^/]*_spec\.rb|(?:.*/)?[^/]*Tests?\.(?:java|cs)"
)
# Commands that never run tests: no point in running them on the base for their ids.
_NO_TESTS = re.compile(
    r"\s*(?:python3? -m )?(?:ruff|flake8|mypy|pyright|black|isort|pylint|eslint|prettier|tsc|true|false|gofmt|go vet"
    r"|cargo (?:fmt|clippy|check|build))\b[^;&|]*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """What the guard says of one suite. ``base`` None: not asked for."""

    findings: list[str]
    notes: list[str]
    base: TestIds | None


async def guard_suite(
    bench: Bench, suite: Suite, run: SuiteRun, changes: list[Change], *, cache: Path, need_ids: bool
) -> Guarded:
    """``changes``: of the candidate against the original base. ``need_ids``: new tests are required of the job."""
    if suite.test_edits == "any" and not need_ids:
        return Guarded(findings=[], notes=[], base=None)
    findings = _edits(suite, changes)
    base = TestIds() if _NO_TESTS.fullmatch(suite.command) else await base_ids(bench, suite, cache)
    notes: list[str] = []
    if suite.test_edits == "add" and base.listed:
        findings += lost_tests(base, run.tests, completed=run.passed)
        notes.append(f"suite {suite.id}: test ids come from the candidate's own process and could be forged")
    elif suite.test_edits == "add":
        findings += _deletions(suite, changes)
        notes.append(f"suite {suite.id}: its test ids cannot be listed; only deleting what `protects` names is refused")
    return Guarded(findings=findings, notes=notes, base=base)


def _edits(suite: Suite, changes: list[Change]) -> list[str]:
    if suite.test_edits != "none":
        return []
    hit = [c.path for c in changes if matches_any(suite.protects, c.path)]
    return [f"test_edits is \"none\" and these protected files changed: {_list(hit)}"] if hit else []


def _deletions(suite: Suite, changes: list[Change]) -> list[str]:
    hit = [c.path for c in changes if c.status in "DT" and matches_any(suite.protects, c.path)]
    return [f"files that the suite protects were deleted: {_list(hit)}"] if hit else []


def _list(paths: list[bytes]) -> str:
    return ", ".join(show(p) for p in paths[:20]) + (f" and {len(paths) - 20} more" if len(paths) > 20 else "")


async def base_ids(bench: Bench, suite: Suite, cache: Path) -> TestIds:
    """The suite's ids at the base, run once per base tree, command and environment. A base that fails still gives them."""
    key = digest({"version": CACHE_VERSION, "tree": bench.base, "command": suite.command, "environment": bench.environment.key})
    path = cache / f"{key}.json"
    try:
        return TestIds.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    run = await run_suite(bench, suite, bench.base)
    ids = replace(run.tests, content=run.passed)
    if run.reason in ("exit", "not_started"):
        _store(path, canonical_text(ids.to_json()))
    return ids


def _store(path: Path, text: str) -> None:
    """Whole or not at all: another process may read it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    part.write_text(text)
    part.replace(path)


def edited_tests(policy_suites: list[Suite], changes: list[Change], listed: list[TestIds]) -> list[bytes]:
    """Existing test files that the candidate edited or deleted: by what the suites protect, by where ids came from, by name."""
    known = {f.encode("utf-8", "surrogateescape") for ids in listed for f in ids.files.values()}
    protects = [glob for suite in policy_suites for glob in suite.protects]
    return sorted(
        c.path for c in changes
        if c.status != "A" and (c.path in known or matches_any(protects, c.path) or _TEST_FILE.fullmatch(c.path))
    )
