"""The evidence room on the real sandbox and overlay workspaces."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from evidence_rig import FILES, SELFCHECK, MemoryBlobs, Rig, git, make_repo

from capataz.contracts.coding import JobOptions
from capataz.contracts.errors import SandboxUnavailable, SetupFailed
from capataz.contracts.records import WorkerOutput, WorkItem
from capataz.evidence.service import EvidenceService
from capataz.sandbox import make_sandbox

OPTIONS = JobOptions()


@pytest.fixture
async def real(tmp_path: Path):
    """``real(files)``: a rig on bubblewrap; skipped where the machine forbids it."""
    from capataz.workspace.repositories import LocalRepositories

    made: list[LocalRepositories] = []
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    sandbox = make_sandbox("bubblewrap", runtime_dir=runtime)
    try:
        enforced = await sandbox.probe()
    except SandboxUnavailable as error:
        pytest.skip(str(error))

    def make(files=None) -> Rig:
        home = tmp_path / "home"
        repositories = LocalRepositories(home, overlay="overlay" in enforced)
        made.append(repositories)
        blobs = MemoryBlobs()

        async def sandbox_for(_: JobOptions):
            return sandbox

        service = EvidenceService(repositories, sandbox_for, blobs, home)
        return Rig(home, make_repo(tmp_path / "repo", files), repositories, blobs, sandbox, service)

    yield make
    for repositories in made:
        repositories.close()


async def worked(rig: Rig, job, item: WorkItem, script: str):
    """A record of a worker that ran a script in the job's sandbox."""
    ref = await rig.service.workspace(rig.context(item.id), job, item, base_sha=job.request.base_sha, round=0)
    opened = await (await rig.run()).workspace(ref.workspace_id, ref.tree, base_sha=ref.base_sha)
    environment = await rig.service.environment(rig.context().run_id, job)
    sandbox = make_sandbox("bubblewrap", runtime_dir=rig.home.parent / "runtime")
    session = await sandbox.start(environment.sandbox_spec(opened.mount, purpose="agent"))
    try:
        result = await session.run(["/bin/sh", "-c", script])
        assert result.exit_code == 0, result.stderr
    finally:
        await session.kill()
    output = WorkerOutput(status="completed", summary="s")
    return await rig.service.freeze(rig.context(), job, ref, item, output, round=0, end_tree=await opened.snapshot())


async def test_a_job_from_worker_to_promotion(real):
    rig = real()
    job = await rig.job(options=OPTIONS)
    item = WorkItem(id="main", objective="o", write_globs=["**"])
    more = SELFCHECK + "\n    def test_zero(self):\n        self.assertEqual(calc.add(0, 0), 0)\n"
    record = await worked(rig, job, item, f"python3 -m unittest -q selfcheck && rm -rf .gitignore && cat > selfcheck.py <<'E'\n{more}\nE\n")
    assert record.changed_files == [b".gitignore", b"selfcheck.py"]
    candidate = await rig.service.compose(rig.context(), job, [record], base_sha=job.request.base_sha, round=0)
    envelope, report, manifest, _, _ = await rig.judged(job, candidate)
    assert report.passed and report.suites[0].tests_collected == 2, manifest.test_log_text
    assert report.sandbox["backend"] == "bubblewrap" and "network" in report.sandbox["enforces"] and report.sandbox["tools"]["python3"]
    done = await rig.service.promote(rig.context(), job, envelope, approval={"value": "approve", "binding": envelope.sha256()})
    assert done.checked_out and git(rig.repo, "rev-parse", "main") == candidate.sha and git(rig.repo, "status", "--porcelain") == ""
    await rig.service.cleanup(rig.context().run_id)
    await rig.service.cleanup(rig.context().run_id)
    assert not list((rig.home / "runs").glob("*/ws/*"))


async def test_a_weakened_suite_is_found_in_the_real_sandbox_too(real):
    rig = real()
    job = await rig.job(options=OPTIONS)
    item = WorkItem(id="main", objective="o", write_globs=["selfcheck.py"])
    record = await worked(rig, job, item, "sed -i 's/test_add/xtest_add/' selfcheck.py; echo 'def test_x(): pass' >> selfcheck.py")
    candidate = await rig.service.compose(rig.context(), job, [record], base_sha=job.request.base_sha, round=0)
    report = await rig.service.test(rig.context(), job, candidate, suite_ids=[])
    assert not report.passed and "selfcheck.T.test_add" in report.suites[0].findings[0]


async def test_a_suite_has_no_network_and_is_killed_with_all_it_started(real):
    rig = real({**FILES, "capataz.toml": (
        '[suites.net]\ncommand = "python3 -c \'import socket; socket.create_connection((\\"1.1.1.1\\", 53), 2)\'"\n'
        '[suites.slow]\ncommand = "setsid sleep 98765 & sleep 98765"\ntimeout = "500ms"\n'
        '[suites.loud]\ncommand = "head -c 40000000 /dev/zero | tr \'\\\\0\' x; echo end"\n'
    )})
    job = await rig.job(options=OPTIONS)
    item = WorkItem(id="main", objective="o", write_globs=["**"])
    record = await worked(rig, job, item, "echo x > x")
    candidate = await rig.service.compose(rig.context(), job, [record], base_sha=job.request.base_sha, round=0)
    report = await rig.service.test(rig.context(), job, candidate, suite_ids=[])
    net, slow, loud = report.suites
    assert net.exit_code == 1 and b"unreachable" in await rig.blobs.get(net.artifact_uri)
    assert slow.reason == "timeout" and not slow.passed
    log = await rig.blobs.get(loud.artifact_uri)
    assert loud.passed and log.endswith(b"end\n") and len(log) < 20_000_000 and b"bytes left out" in log
    assert _running(b"98765") == []


async def test_a_setup_layer_is_made_once_and_used_by_agents_and_suites(real):
    rig = real({
        **FILES, "setup.sh": "#!/bin/sh\necho made >> /capataz/layer/count\necho 'from mark import value' > /dev/null\n"
        "echo 'value = 42' > /capataz/layer/mark.py\nmkdir -p node_modules/m && echo hi > node_modules/m/x\n",
        "capataz.toml": (
            '[environment]\nstack = "custom"\nenv = { PYTHONPATH = "/capataz/layer" }\nsetup = ["sh setup.sh"]\n'
            '[suites.unit]\ncommand = "python3 -c \'import mark\' && grep hi node_modules/m/x && ! touch /capataz/layer/y"\n'
        ),
    })
    job = await rig.job(options=OPTIONS)
    item = WorkItem(id="main", objective="o", write_globs=["x"])
    record = await worked(rig, job, item, "grep hi node_modules/m/x && cp /capataz/layer/mark.py x")
    assert record.changed_files == [b"x"]
    candidate = await rig.service.compose(rig.context(), job, [record], base_sha=job.request.base_sha, round=0)
    report = await rig.service.test(rig.context(), job, candidate, suite_ids=[])
    assert report.passed, await rig.blobs.get(report.suites[0].artifact_uri)
    assert any("set-up ran once" in n for n in report.notes)
    layers = [p for p in (rig.home / "layers").iterdir() if p.is_dir()]
    assert len(layers) == 1 and (layers[0] / "count").read_text() == "made\n"
    assert json.loads((layers[0] / "layer.json").read_text())["node_modules"] == ["node_modules"]


async def test_a_failed_setup_is_one_clear_error_and_leaves_no_layer(real):
    rig = real({**FILES, "capataz.toml": '[environment]\nstack = "custom"\nsetup = ["echo before; no-such-tool --flag"]\n[suites.u]\ncommand = "true"\n'})
    job = await rig.job(options=OPTIONS)
    with pytest.raises(SetupFailed) as error:
        await rig.service.environment(rig.context().run_id, job)
    assert "no-such-tool" in str(error.value) and "exit code 127" in str(error.value) and "\n" not in str(error.value)
    assert not [p for p in (rig.home / "layers").iterdir() if p.is_dir()]
    assert not list((rig.home / "runs").glob("*/ws/*"))


async def test_a_stack_that_the_host_lacks_is_said(real):
    rig = real({**FILES, "capataz.toml": '[environment]\nstack = "python@2.5"\n[suites.u]\ncommand = "true"\n'})
    job = await rig.job(options=OPTIONS)
    with pytest.raises(SandboxUnavailable, match=r"python@2\.5"):
        await rig.service.environment(rig.context().run_id, job)


def _running(word: bytes) -> list[Path]:
    return [p for p in Path("/proc").glob("[0-9]*/cmdline") if word in _bytes(p)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wheel(folder: Path) -> None:
    """A tiny distribution made here, so that set-up needs no registry."""
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny.py", "value = 7\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n")


@pytest.mark.slow
async def test_a_python_layer_is_a_virtual_environment(real, tmp_path: Path):
    wheel(tmp_path)
    data = (tmp_path / "tiny-1.0-py3-none-any.whl").read_bytes()
    rig = real({**FILES, "wheels/tiny-1.0-py3-none-any.whl": data, "capataz.toml": (
        '[environment]\nstack = "python"\nsetup = ["pip install -q --no-index --find-links wheels tiny"]\n'
        '[suites.unit]\ncommand = "python -c \'import tiny, sys; assert sys.prefix == \\"/capataz/layer/venv\\"\' && python -m unittest -q selfcheck"\n'
    )})
    job = await rig.job(options=OPTIONS)
    item = WorkItem(id="main", objective="o", write_globs=["x"])
    record = await worked(rig, job, item, "python -c 'import tiny; print(tiny.value)' > x")
    assert await (await rig.run()).read(record.tree, b"x") == b"7\n"
    candidate = await rig.service.compose(rig.context(), job, [record], base_sha=job.request.base_sha, round=0)
    report = await rig.service.test(rig.context(), job, candidate, suite_ids=[])
    assert report.passed and report.suites[0].tests_collected == 1, await rig.blobs.get(report.suites[0].artifact_uri)


async def test_the_local_backend_runs_suites_on_copies_and_says_that_nothing_is_isolated(tmp_path: Path):
    from capataz.workspace.repositories import LocalRepositories

    runtime = tmp_path / "runtime"
    runtime.mkdir()
    sandbox = make_sandbox("local", runtime_dir=runtime)
    repositories = LocalRepositories(tmp_path / "home", overlay=False)

    async def sandbox_for(_: JobOptions):
        return sandbox

    blobs = MemoryBlobs()
    files = {**FILES, "capataz.toml": (
        '[environment]\nstack = "custom"\nsetup = ["mkdir node_modules && echo hi > node_modules/x"]\n'
        '[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\n'
    )}
    service = EvidenceService(repositories, sandbox_for, blobs, tmp_path / "home")
    rig = Rig(tmp_path / "home", make_repo(tmp_path / "repo", files), repositories, blobs, sandbox, service)  # type: ignore[arg-type]
    job = await rig.job(options=JobOptions(sandbox="local", trust_repository=True))
    assert (await service.workspace(rig.context("read"), job, None, base_sha=job.request.base_sha, round=0)).read_only
    report = await service.test(rig.context(), job, await rig.candidate(job, {"x": "x\n"}), suite_ids=[])
    assert report.passed and report.suites[0].tests_collected == 1, await blobs.get(report.suites[0].artifact_uri)
    assert any("without isolation" in n for n in report.notes)
    repositories.close()
