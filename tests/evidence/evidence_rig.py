"""A rig for the evidence room: real git and workspaces; a sandbox that runs commands in the workspace's own folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capataz.contracts.coding import CodingContext, CodingJob, JobOptions, WorkspaceRef
from capataz.contracts.errors import NotFound
from capataz.contracts.records import Candidate, ReviewOutput, SynthesisOutput, WorkerOutput, WorkerRecord, WorkItem
from capataz.contracts.sandbox import CommandResult, SandboxSpec
from capataz.evidence.job import prepare_job
from capataz.evidence.service import EvidenceService
from capataz.workspace.repositories import LocalRepositories

RUN = "r0000000000000001"
GIT_ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com",
}
SELFCHECK = (
    "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n"
)
FILES: dict[str, str] = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "selfcheck.py": SELFCHECK,
    "capataz.toml": '[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\nrequired = true\n',
    ".gitignore": "*.log\n",
}


def git(repo: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=repo, env=GIT_ENV, check=True, capture_output=True, text=True).stdout.strip()


def write(folder: Path, files: dict[str, str | bytes | None]) -> None:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def make_repo(path: Path, files: dict[str, str | bytes | None] | None = None) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    write(path, {**FILES, **(files or {})} if files is None or "calc.py" not in files else files)
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "base")
    return path


class MemoryBlobs:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        uri = f"blob:{hashlib.sha256(data).hexdigest()}"
        self.data[uri] = data
        return uri

    async def get(self, uri: str) -> bytes:
        if uri not in self.data:
            raise NotFound(uri)
        return self.data[uri]

    async def close(self) -> None:
        pass


class PlainSession:
    backend = "local"
    enforces: tuple[str, ...] = ()

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec

    async def run(self, argv: Any, *, cwd: str = "/workspace", timeout_s: float = 120, output_limit: int = 1 << 16, **_: Any) -> CommandResult:
        folder = self.spec.workspace.upper if self.spec.workspace and cwd.startswith("/workspace") else Path("/")
        env = {"PATH": ":".join([*self.spec.path, os.environ["PATH"]]), "HOME": "/nonexistent", **self.spec.env}
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=folder, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            os.killpg(process.pid, 9)
            out, err = await process.communicate()
            return self._result(-1, out, err, output_limit, "timeout")
        code = process.returncode or 0
        return self._result(code if code >= 0 else 128 - code, out, err, output_limit, "exit")

    def _result(self, code: int, out: bytes, err: bytes, limit: int, reason: Any) -> CommandResult:
        return CommandResult(
            exit_code=code, stdout=out[-limit:], stderr=err[-limit:], truncated=0, stdout_total=len(out), stderr_total=len(err),
            reason=reason, duration_s=0.01,
        )

    async def kill(self) -> None:
        pass


class PlainSandbox:
    """Isolates nothing. ``specs``: what it was asked for."""

    name = "local"

    def __init__(self) -> None:
        self.specs: list[SandboxSpec] = []

    async def start(self, spec: SandboxSpec) -> PlainSession:
        self.specs.append(spec)
        return PlainSession(spec)


@dataclass
class Rig:
    home: Path
    repo: Path
    repositories: LocalRepositories
    blobs: MemoryBlobs
    sandbox: PlainSandbox
    service: EvidenceService
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def context(self, effect: str = "e", run_id: str = RUN) -> CodingContext:
        return CodingContext(run_id=run_id, effect=effect, started_at=1_700_000_000.7, emit=lambda t, d: self.events.append((t, d)))

    async def job(self, run_id: str = RUN, **kwargs: Any) -> CodingJob:
        options = kwargs.pop("options", None) or JobOptions(sandbox="local", trust_repository=True)
        kwargs.setdefault("request", "Do the thing")
        return await prepare_job(self.repositories, run_id, repo=self.repo, options=options, **kwargs)

    async def run(self, run_id: str = RUN):
        return await self.repositories.open_run(run_id, await self.repositories.inspect(self.repo))

    async def work(self, job: CodingJob, item: WorkItem, change: Callable[[Path], None], *, base_sha: str | None = None, round: int = 0) -> tuple[WorkspaceRef, str]:
        """A workspace in which a worker made a change, and its tree."""
        base = base_sha or job.request.base_sha
        ref = await self.service.workspace(self.context(f"w{round}{item.id}"), job, item, base_sha=base, round=round)
        opened = await (await self.run()).workspace(ref.workspace_id, ref.tree, base_sha=ref.base_sha)
        change(opened.mount.upper)
        return ref, await opened.snapshot()

    async def freeze(self, job: CodingJob, item: WorkItem, change: Callable[[Path], None], *, base_sha: str | None = None, round: int = 0) -> WorkerRecord:
        ref, tree = await self.work(job, item, change, base_sha=base_sha, round=round)
        output = WorkerOutput(status="completed", summary="done")
        return await self.service.freeze(self.context(), job, ref, item, output, round=round, end_tree=tree)

    async def candidate(self, job: CodingJob, files: dict[str, str | bytes | None], *, base_sha: str | None = None, round: int = 0) -> Candidate:
        item = WorkItem(id="main", objective="o", write_globs=["**"])
        record = await self.freeze(job, item, lambda folder: write(folder, files), base_sha=base_sha, round=round)
        return await self.service.compose(self.context(), job, [record], base_sha=base_sha or job.request.base_sha, round=round)

    async def judged(self, job: CodingJob, candidate: Candidate, *, passed: bool = True):
        """The envelope of the candidate, both reviewers saying ``passed``, and its report."""
        ctx = self.context()
        report = await self.service.test(ctx, job, candidate, suite_ids=job.policy.required_suite_ids())
        manifest = await self.service.manifest(ctx, job, candidate, report)
        bound = {
            "candidate_id": candidate.id, "candidate_sha": candidate.sha, "test_report_digest": report.digest,
            "evidence_digest": manifest.digest,
        }
        synthesis = SynthesisOutput(**bound, summary="s", acceptance_evidence=["unit"])
        review = ReviewOutput(**bound, candidate_passed=passed, blocking_issues=[] if passed else ["no"])
        envelope = await self.service.envelope(
            ctx, job, candidate, report, manifest, synthesis, {"verifier": review, "refuter": review}, usage={})
        return envelope, report, manifest, synthesis, review
