from __future__ import annotations

import subprocess

import pytest
from evidence_rig import RUN, git

from capataz.contracts.canonical import digest
from capataz.contracts.coding import JobOptions
from capataz.contracts.errors import BindingBroken, EvidenceError, TargetMoved

GOOD = {"mul.py": "def mul(a, b):\n    return a * b\n"}


def approve(envelope, **more):
    return {"value": "approve", "binding": envelope.sha256(), "by": "ana", **more}


def state(repo) -> str:
    status = subprocess.run(["git", "status", "--porcelain"], cwd=repo, capture_output=True, text=True, check=True).stdout
    return git(repo, "for-each-ref") + status


async def test_what_was_approved_is_promoted_once_and_again_is_the_same(rig):
    job = await rig.job()
    candidate = await rig.candidate(job, GOOD)
    envelope, report, manifest, _, _ = await rig.judged(job, candidate)
    assert envelope.passed and manifest.digest == digest({k: v for k, v in manifest.model_dump(mode="json").items() if k != "digest"})
    before = state(rig.repo)
    done = await rig.service.promote(rig.context(), job, envelope, approval=approve(envelope))
    assert done.ref == "refs/heads/main" and done.new == candidate.sha and done.checked_out and done.old == job.request.base_sha
    assert git(rig.repo, "rev-parse", "main") == candidate.sha and git(rig.repo, "status", "--porcelain") == ""
    assert (rig.repo / "mul.py").read_text() == GOOD["mul.py"] and before != state(rig.repo)
    again = await rig.service.promote(rig.context(), job, envelope, approval=approve(envelope))
    assert (again.ref, again.new, again.old) == (done.ref, done.new, done.old)
    assert report.passed


async def test_nothing_that_differs_from_the_approval_is_promoted(rig):
    job = await rig.job()
    candidate = await rig.candidate(job, GOOD)
    envelope, report, *_ = await rig.judged(job, candidate)
    other = await rig.candidate(job, {"x": "x"}, round=1)
    before = state(rig.repo)
    forged = [
        envelope.model_copy(update={"candidate_sha": other.sha}),
        envelope.model_copy(update={"changed_files": []}),
        envelope.model_copy(update={"test_report_digest": "0" * 64}),
        envelope.model_copy(update={"evidence_digest": report.digest}),
        envelope.model_copy(update={"diff_uri": other.diff_uri}),
        envelope.model_copy(update={"suites": []}),
        envelope.model_copy(update={"original_base_sha": "0" * 40}),
        envelope.model_copy(update={"passed": False}),
        envelope.model_copy(update={"reviews": {"verifier": envelope.reviews["verifier"]}}),
    ]
    for bad in forged:
        with pytest.raises(BindingBroken):
            await rig.service.promote(rig.context(), job, bad, approval=approve(bad))
    for approval in ({}, approve(envelope, value="decline"), approve(envelope, binding="0" * 64)):
        with pytest.raises(BindingBroken):
            await rig.service.promote(rig.context(), job, envelope, approval=approval)
    assert state(rig.repo) == before


async def test_a_candidate_that_did_not_pass_is_never_promoted(rig):
    job = await rig.job()
    candidate = await rig.candidate(job, {"calc.py": "def add(a, b):\n    return 0\n"})
    envelope, *_ = await rig.judged(job, candidate)
    rejected, *_ = await rig.judged(job, await rig.candidate(job, GOOD, round=1), passed=False)
    assert not envelope.passed and not rejected.passed
    for bad in (envelope, rejected, envelope.model_copy(update={"passed": True}), rejected.model_copy(update={"passed": True})):
        with pytest.raises(BindingBroken):
            await rig.service.promote(rig.context(), job, bad, approval=approve(bad))


async def test_a_target_that_moved_is_left_alone_and_a_rebase_starts_from_it(rig):
    job = await rig.job()
    candidate = await rig.candidate(job, GOOD)
    envelope, *_ = await rig.judged(job, candidate)
    git(rig.repo, "commit", "-q", "--allow-empty", "-m", "somebody else")
    tip, before = git(rig.repo, "rev-parse", "main"), state(rig.repo)
    with pytest.raises(TargetMoved, match="rebase"):
        await rig.service.promote(rig.context(), job, envelope, approval=approve(envelope))
    assert state(rig.repo) == before
    anew = await rig.service.rebase(rig.context(), job, candidate)
    assert anew.job.request.base_sha == anew.job.target.expected_old == tip and anew.job.policy == job.policy
    assert anew.record.base_sha == tip and anew.record.tree == candidate.tree


async def test_a_checkout_that_became_dirty_sends_the_result_to_its_own_branch(rig):
    job = await rig.job()
    envelope, *_ = await rig.judged(job, await rig.candidate(job, GOOD))
    (rig.repo / "calc.py").write_text("# mine\n")
    for _ in range(2):
        done = await rig.service.promote(rig.context(), job, envelope, approval=approve(envelope))
        assert done.ref == f"refs/heads/capataz/{RUN}" and f"git merge capataz/{RUN}" in (done.note or "")
    assert (rig.repo / "calc.py").read_text() == "# mine\n" and git(rig.repo, "rev-parse", "main") == job.request.base_sha


async def test_an_own_branch_that_is_taken_is_never_moved(rig):
    job = await rig.job()
    git(rig.repo, "branch", f"capataz/{RUN}")
    envelope, *_ = await rig.judged(job, await rig.candidate(job, GOOD))
    (rig.repo / "calc.py").write_text("# mine\n")
    for _ in range(2):
        done = await rig.service.promote(rig.context(), job, envelope, approval=approve(envelope))
        assert done.ref == f"refs/heads/capataz/{RUN}-2" and git(rig.repo, "rev-parse", f"capataz/{RUN}") == job.request.base_sha


async def test_a_branch_that_another_work_tree_holds_gets_its_files_there(rig, tmp_path):
    other = tmp_path / "linked tree"
    git(rig.repo, "worktree", "add", "-q", "-b", "topic", str(other))
    job = await rig.job(target="topic")
    envelope, *_ = await rig.judged(job, await rig.candidate(job, GOOD))
    done = await rig.service.promote(rig.context(), job, envelope, approval=approve(envelope))
    assert done.ref == "refs/heads/topic" and done.checked_out
    assert (other / "mul.py").exists() and git(other, "status", "--porcelain") == "" and not (rig.repo / "mul.py").exists()


async def test_reviews_are_bound_to_candidate_report_and_evidence(rig):
    job = await rig.job()
    candidate = await rig.candidate(job, GOOD)
    _, report, manifest, synthesis, review = await rig.judged(job, candidate)
    args = {"candidate": candidate.model_dump(mode="json"), "report": report.model_dump(mode="json"), "manifest": manifest.model_dump(mode="json")}

    async def check(value, role):
        return await rig.service.check(rig.context(), "binding", {**args, "role": role}, value.model_dump(mode="json"))

    assert await check(synthesis, "reducer") is None and await check(review, "verifier") is None
    for field in ("candidate_id", "candidate_sha", "test_report_digest", "evidence_digest"):
        for value, role in ((synthesis, "reducer"), (review, "refuter")):
            refusal = await check(value.model_copy(update={field: "other"}), role)
            assert refusal and refusal.code == "review_not_bound" and refusal.details["field"] == field
            with pytest.raises(EvidenceError):
                wrong = value.model_copy(update={field: "other"})
                reviews = {"verifier": review, "refuter": review if role == "reducer" else wrong}
                await rig.service.envelope(
                    rig.context(), job, candidate, report, manifest, wrong if role == "reducer" else synthesis, reviews, usage={})
    refusal = await check(review.model_copy(update={"blocking_issues": ["broken"]}), "verifier")
    assert refusal and refusal.code == "review_invalid"
    junk = await rig.service.check(rig.context(), "binding", {**args, "role": "verifier"}, {"candidate_passed": "yes?"})
    assert junk and junk.code == "output_invalid"


async def test_the_manifest_holds_diff_and_log_and_an_altered_report_is_not_enveloped(rig):
    job = await rig.job()
    candidate = await rig.candidate(job, {**GOOD, "bin": b"\x00\xff\x1b" * 50})
    _, report, manifest, synthesis, review = await rig.judged(job, candidate)
    assert "+    return a * b" in manifest.diff_text and "bin: added" in manifest.diff_text and "suite unit: passed" in manifest.test_log_text
    assert b"OK" in rig.blobs.data[manifest.test_artifact_uri]
    altered = report.model_copy(update={"passed": not report.passed})
    with pytest.raises(BindingBroken):
        await rig.service.envelope(
            rig.context(), job, candidate, altered, manifest, synthesis, {"verifier": review, "refuter": review}, usage={})


async def test_fast_suites_run_on_the_workers_own_files(build):
    from capataz.contracts.records import WorkerOutput, WorkItem

    rig = build({"calc.py": "x = 1\n", "capataz.toml": '[suites.unit]\nfast = true\ncommand = "grep -q good calc.py || { echo no good; exit 4; }"\n'})
    job = await rig.job(options=JobOptions(sandbox="local", trust_repository=True))
    item = WorkItem(id="main", objective="o", write_globs=["**"])
    ref, _ = await rig.work(job, item, lambda folder: None)
    args = {"job": job.model_dump(mode="json"), "workspace": ref.model_dump(mode="json")}
    done = WorkerOutput(status="completed", summary="s").model_dump(mode="json")
    refusal = await rig.service.check(rig.context(), "fast_suites", args, done)
    assert refusal and refusal.code == "fast_suite_failed" and "no good" in refusal.message and refusal.details["exit_code"] == 4
    assert await rig.service.check(rig.context(), "fast_suites", args, {**done, "status": "blocked"}) is None
    opened = await (await rig.run()).workspace(ref.workspace_id, ref.tree, base_sha=ref.base_sha)
    (opened.mount.upper / "calc.py").write_text("good\n")
    assert await rig.service.check(rig.context(), "fast_suites", args, done) is None
