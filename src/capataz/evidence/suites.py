"""One suite on one tree: a fresh workspace, a fresh sandbox, no network; its exit code, its log and its test ids."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from capataz.contracts.coding import Emit
from capataz.contracts.ids import new_id
from capataz.contracts.policy import Suite
from capataz.contracts.sandbox import WORKSPACE, CommandResult, Mount, Sandbox, Session
from capataz.contracts.workspace import RunRepository
from capataz.evidence.environment import EnvironmentSpec
from capataz.evidence.testids import TestIds, parse_log, parse_reports

REPORTERS = "/capataz/reporters"
SPOOL_BYTES = 16 << 20
_RING_BYTES = 256 << 10
_REPORT_BYTES = 64 << 20
_SOURCE = Path(__file__).parent / "reporters"
_NODE = re.compile(r"\b(?:node|npm|npx|yarn|pnpm)\b")
_JEST = re.compile(r"(?:npx (?:--no-install )?)?(?:\./node_modules/\.bin/)?jest(?: [\w./=,@-]+)*")
_VITEST = re.compile(r"(?:npx (?:--no-install )?)?(?:\./node_modules/\.bin/)?vitest run(?: [\w./=,@-]+)*")
_NPM_TEST = re.compile(r"npm (?:run )?(?:test|t)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """``exit_code``: the process's own. ``reason``: exit, timeout, memory, pids, disk, killed, output or not_started."""

    exit_code: int
    reason: str
    duration_s: float
    log: bytes
    tests: TestIds
    backend: str
    enforces: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.exit_code == 0 and self.reason == "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where suites of one job run. ``base``: the tree whose checkout lies under the workspaces."""

    run: RunRepository
    sandbox: Sandbox
    environment: EnvironmentSpec
    base_sha: str
    base: str
    emit: Emit
    scripts: dict[str, str] = field(default_factory=dict[str, str])   # package.json of the base: what `npm test` stands for


async def run_suite(bench: Bench, suite: Suite, tree: str) -> SuiteRun:
    """Raises ``SandboxUnavailable`` and ``SandboxFailed``; everything that the command does is a result."""
    workspace = await bench.run.workspace(new_id("suite-"), bench.base, base_sha=bench.base_sha)
    try:
        if tree != bench.base:
            await workspace.restore(tree)
        folder = f"/tmp/capataz-{os.urandom(8).hex()}"
        reporter = _Reporter(bench, suite, folder)
        spec = bench.environment.sandbox_spec(workspace.mount, purpose="suite", read_only=reporter.mounts, env=reporter.env)
        session = await bench.sandbox.start(spec)
        bench.emit("sandbox.started", {"backend": session.backend, "enforces": list(session.enforces), "purpose": "suite"})
        return await _in(session, bench, suite, reporter)
    finally:
        await workspace.remove()


async def _in(session: Session, bench: Bench, suite: Suite, reporter: _Reporter) -> SuiteRun:
    result: CommandResult | None = None
    try:
        # One stream, so that the log shows messages and errors in the order in which they were printed.
        argv = ("/bin/sh", "-c", 'exec 2>&1; exec /bin/sh -c "$1"', "sh", reporter.command)
        result = await session.run(argv, timeout_s=suite.timeout, output_limit=_RING_BYTES, spool_limit=SPOOL_BYTES)
        log = await asyncio.to_thread(_log, result)
        tests = await _tests(session, reporter, log)
        return SuiteRun(
            exit_code=result.exit_code,
            reason="not_started" if result.reason == "exit" and result.exit_code in (126, 127) else result.reason,
            duration_s=round(result.duration_s, 3),
            log=log,
            tests=tests,
            backend=session.backend,
            enforces=session.enforces,
        )
    finally:
        await session.kill()
        ended = {"duration_s": result.duration_s if result else 0.0, "reason": result.reason if result else None}
        bench.emit("sandbox.ended", {"backend": session.backend, **ended})


def _log(result: CommandResult) -> bytes:
    """Everything that was printed, up to the spool's limit; beyond it head and tail with the cut marked."""
    parts: list[bytes] = []
    streams = ((result.full_stdout, result.stdout, result.stdout_total), (result.full_stderr, result.stderr, result.stderr_total))
    for spool, ring, total in streams:
        data = ring
        if spool is not None and spool.exists():
            head = spool.read_bytes()
            spool.unlink()
            left = total - len(head)
            data = head
            if left > 0:
                tail = ring[-min(_RING_BYTES // 2, left) :]
                gap = f"\n[capataz: {left - len(tail)} bytes left out]\n" if left > len(tail) else ""
                data = head + gap.encode() + tail
        parts.append(data)
    return b"".join(parts)


async def _tests(session: Session, reporter: _Reporter, log: bytes) -> TestIds:
    """The reports that the suite's processes left in the sandbox's own /tmp. They all ended with the command."""
    script = 'cat "$1"/*.jsonl 2>/dev/null || true'
    argv = ("/bin/sh", "-c", script, "sh", reporter.folder)
    result = await session.run(argv, cwd="/", timeout_s=60, output_limit=_REPORT_BYTES)
    found = parse_reports(result.stdout)
    return found if found.listed else parse_log(reporter.command, log)


class _Reporter:
    """How a suite is made to tell its test ids: mounts, variables and, for some runners, arguments."""

    def __init__(self, bench: Bench, suite: Suite, folder: str) -> None:
        local = bench.sandbox.name == "local"
        self.folder = folder
        self._home = str(_SOURCE) if local else REPORTERS
        self.mounts: tuple[Mount, ...] = () if local else (Mount(_SOURCE, REPORTERS),)
        self.command = _with_reporter(suite.command, bench.scripts, self._home)
        self.env = self._env(bench, suite, folder)

    def _env(self, bench: Bench, suite: Suite, folder: str) -> dict[str, str]:
        env = dict(bench.environment.env)
        env["CAPATAZ_TEST_REPORTS"] = folder
        if bench.sandbox.name != "local":
            env["CAPATAZ_TEST_ROOT"] = WORKSPACE
        env["PYTHONPATH"] = ":".join(p for p in (self._home, env.get("PYTHONPATH")) if p)
        if _NODE.search(suite.command) and _node_reports(bench, suite):
            options = (
                "--test-reporter=spec --test-reporter-destination=stdout "
                f"--test-reporter={self._home}/capataz_node.mjs --test-reporter-destination=stderr"
            )
            env["NODE_OPTIONS"] = " ".join(p for p in (env.get("NODE_OPTIONS"), options) if p)
        if re.search(r"\bgo\s+test\b", suite.command):
            env["GOFLAGS"] = " ".join(p for p in (env.get("GOFLAGS"), "-v") if p)
        return env


def _node_reports(bench: Bench, suite: Suite) -> bool:
    """node 20.10 and newer take reporters from NODE_OPTIONS; reporters of the command's own would be one too many."""
    version = re.search(r"(\d+)\.(\d+)", bench.environment.tools.get("node", ""))
    if version is None or (int(version[1]), int(version[2])) < (20, 10):
        return False
    return not any("test-reporter" in text for text in (suite.command, *bench.scripts.values()))


def _with_reporter(command: str, scripts: dict[str, str], home: str) -> str:
    """The command with a reporter added, for runners that take one only as an argument; others as they are."""
    bare = command.strip()
    npm = bool(_NPM_TEST.fullmatch(bare))
    script = scripts.get("test", "").strip() if npm else bare
    dashes = " --" if npm else ""
    if _JEST.fullmatch(script):
        return f"{bare}{dashes} --reporters=default --reporters={home}/capataz_jest.cjs"
    if _VITEST.fullmatch(script):
        return f"{bare}{dashes} --reporter=default --reporter={home}/capataz_vitest.mjs"
    return command
