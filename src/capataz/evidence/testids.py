"""Test ids: what a suite collected and how each test ended, and what a candidate lost against its base."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from capataz.evidence.scopes import show

RAN = frozenset({"passed", "failed"})
WAIVED = frozenset({"skipped", "xfailed", "xpassed"})
_SHOWN = 20
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_MAX_TESTS = 500_000


@dataclass(frozen=True, slots=True)
class TestIds:
    """``outcomes``: id -> passed, failed, skipped, xfailed, xpassed or collected (it did not run). ``files``: id -> its file.
    ``content``: the suite ended with exit code 0, whatever its tests did."""

    __test__ = False
    runners: tuple[str, ...] = ()
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    content: bool = False

    @property
    def listed(self) -> bool:
        """Whether a runner reported at all."""
        return bool(self.runners)

    def to_json(self) -> dict[str, Any]:
        return {"runners": list(self.runners), "outcomes": self.outcomes, "files": self.files, "content": self.content}

    @staticmethod
    def from_json(data: dict[str, Any]) -> TestIds:
        return TestIds(tuple(data["runners"]), dict(data["outcomes"]), dict(data["files"]), bool(data["content"]))


def parse_reports(data: bytes) -> TestIds:
    """The reporters' JSON lines. They come from a hostile process: what is not a report line is skipped."""
    runners: set[str] = set()
    outcomes: dict[str, str] = {}
    files: dict[str, str] = {}
    for line in data.splitlines():
        entry = _entry(line)
        if entry is None or len(outcomes) >= _MAX_TESTS:
            continue
        runner, test, file, outcome = entry
        runners.add(runner)
        outcomes[test] = _worse(outcomes.get(test, "collected"), outcome)
        if file:
            files[test] = file
    return TestIds(tuple(sorted(runners)), outcomes, files)


def _entry(line: bytes) -> tuple[str, str, str | None, str] | None:
    try:
        data = json.loads(line)
        runner, test, file, outcome = data["r"], data["i"], data["f"], data["o"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    known = outcome == "collected" or outcome in RAN or outcome in WAIVED
    if not (isinstance(runner, str) and isinstance(test, str) and known and (file is None or isinstance(file, str))):
        return None
    test = show(_ADDRESS.sub("0x", test)[:1000].encode("utf-8", "replace"))
    return runner[:40], test, file and file.encode("utf-8", "replace").decode(), outcome


_ORDER = {"collected": 0, "passed": 1, "xpassed": 2, "xfailed": 3, "skipped": 4, "failed": 5}


def _worse(a: str, b: str) -> str:
    """A test reports more than once (set-up, call, tear-down, repeats): the worst counts."""
    return max(a, b, key=_ORDER.__getitem__)


_CARGO = re.compile(rb"^test (\S+)(?: - [^\n]*)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_CARGO_UNIT = re.compile(rb"^\s+(?:Running|Doc-tests) ([^\n(]*?)(?: \([^\n]*\))?$", re.MULTILINE)
_GO = re.compile(rb"^\s*--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)
_GO_PACKAGE = re.compile(rb"^(?:ok|FAIL|---|\?)\s+(\S+)\s+(?:[\d.]+s|\(cached\))", re.MULTILINE)


def parse_log(command: str, log: bytes) -> TestIds:
    """Ids that ``cargo test`` and ``go test -v`` print themselves; nothing for other commands."""
    if re.search(r"\bcargo\b.*\btest\b", command):
        return _cargo(log)
    if re.search(r"\bgo\s+test\b", command):
        return _go(log)
    return TestIds()


def _cargo(log: bytes) -> TestIds:
    words = {b"ok": "passed", b"FAILED": "failed", b"ignored": "skipped"}
    units = [(m.start(), m[1].decode("utf-8", "replace")) for m in _CARGO_UNIT.finditer(log)]
    found: dict[str, str] = {}
    for match in _CARGO.finditer(log):
        unit = next((name for start, name in reversed(units) if start < match.start()), "")
        found[f"{unit} {match[1].decode('utf-8', 'replace')}".strip()] = words[match[2]]
    return TestIds(("cargo",) if found or b"running 0 tests" in log else (), found)


def _go(log: bytes) -> TestIds:
    """A package's summary line comes after its tests."""
    words = {b"PASS": "passed", b"FAIL": "failed", b"SKIP": "skipped"}
    packages = [(m.start(), m[1].decode("utf-8", "replace")) for m in _GO_PACKAGE.finditer(log)]
    found: dict[str, str] = {}
    for match in _GO.finditer(log):
        package = next((name for start, name in packages if start > match.start()), "")
        found[f"{package} {match[2].decode('utf-8', 'replace')}".strip()] = words[match[1]]
    return TestIds(("go",) if found else (), found)


def lost_tests(base: TestIds, candidate: TestIds, *, completed: bool) -> list[str]:
    """One sentence for each way in which the candidate's tests guard less than the base's.

    ``completed``: the candidate's suite ran to its end and was content, so a test that did not run was left out on purpose,
    and one that failed was kept out of the exit code on purpose, unless a content base had it fail as well.
    """
    gone = sorted(set(base.outcomes) - set(candidate.outcomes))
    ran = {t for t, outcome in base.outcomes.items() if outcome in RAN}
    waived = sorted(t for t in ran if candidate.outcomes.get(t) in WAIVED)
    idle = sorted(t for t in ran if candidate.outcomes.get(t) == "collected") if completed else []
    heeded = {t for t, outcome in base.outcomes.items() if not (base.content and outcome == "failed")}
    unheeded = sorted(t for t in heeded if candidate.outcomes.get(t) == "failed") if completed else []
    findings: list[str] = []
    if gone:
        findings.append(f"{_tests(gone)} of the base not collected any more: {_names(gone)}")
    if waived:
        findings.append(f"{_tests(waived)} that ran at the base now skipped or expected to fail: {_names(waived)}")
    if idle:
        findings.append(f"{_tests(idle)} that ran at the base collected but not run: {_names(idle)}")
    if unheeded:
        findings.append(f"{_tests(unheeded)} failed and the suite ended with exit code 0 all the same: {_names(unheeded)}")
    return findings


def _tests(ids: list[str]) -> str:
    return f"{len(ids)} tests" if len(ids) > 1 else "1 test"


def _names(ids: list[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(" ".join(i.split())[:200] for i in ids[:_SHOWN]) + more
