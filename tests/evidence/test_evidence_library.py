"""The verbs for programs that begin without a job: job, cite, measure, publish."""

from __future__ import annotations

import pytest
from evidence_rig import RUN, git

from capataz.contracts.coding import JobOptions, Reference
from capataz.contracts.errors import RepositoryUnusable, TargetMoved, UsageError

OWN = f"refs/heads/capataz/{RUN}"
GOOD = {"mul.py": "def mul(a, b):\n    return a * b\n"}


async def own_job(rig, **changed):
    given = {"repository": str(rig.repo), "request": "Multiply", "criteria": [], "base": None, "options": JobOptions()}
    return await rig.service.job(rig.context(), **{**given, **changed})


async def test_a_job_goes_to_the_runs_own_branch_and_needs_no_suite(build):
    rig = build({"calc.py": "x = 1\n"})  # no policy, no tests
    job = await own_job(rig)
    assert (job.target.ref, job.target.expected_old, job.policy.required_suite_ids()) == (OWN, None, [])
    assert job.request.base_sha == git(rig.repo, "rev-parse", "main") and job.request.success_criteria == ["Multiply"]
    with pytest.raises(RepositoryUnusable):
        await own_job(rig, base="no-such-branch")
    with pytest.raises(UsageError, match="trust"):
        await own_job(rig, options=JobOptions(sandbox="local"))
    with pytest.raises(UsageError, match="empty"):
        await own_job(rig, request="  ")


@pytest.mark.slow
async def test_a_second_job_of_a_run_that_fails_leaves_the_firsts_work(build):
    rig = build()
    job = await own_job(rig)
    candidate = await rig.candidate(job, GOOD)
    with pytest.raises(UsageError):
        await own_job(rig, request="")
    assert (await rig.service.publish(rig.context(), job, candidate, expected_old=None)).new == candidate.sha


async def test_only_lines_that_are_there_are_cited(build):
    rig = build({"a.py": "one\ntwo\nthree\n", "none": "", "ü.txt": "x\u202ey", "bin": b"\xff\n"})
    job = await own_job(rig)
    places = [
        ("a.py", 2, None), ("a.py", 1, 3), ("ü.txt", 1, None), ("bin", 1, None), ("a.py", 0, None), ("a.py", 4, None), ("a.py", 3, 2),
        ("a.py", 1, 9), ("none", 1, None), ("../a.py", 1, None), ("/a.py", 1, None), ("gone", 1, None),
    ]  # fmt: skip
    asked = [Reference(path=path, line=line, end_line=end) for path, line, end in places]
    found = await rig.service.cite(rig.context(), job, asked, sha=job.request.base_sha)
    assert [cited.reference for cited in found] == asked
    assert [cited.text for cited in found] == ["two", "one\ntwo\nthree", "x\\u202ey", "\\xff", *[None] * 8]


@pytest.mark.slow
async def test_a_measurement_is_of_the_commit_that_is_named(build):
    rig = build()
    job = await own_job(rig)
    candidate = await rig.candidate(job, GOOD)
    before = await rig.service.measure(rig.context(), job, "cat mul.py", sha=job.request.base_sha, timeout_s=30)
    after = await rig.service.measure(rig.context(), job, "cat mul.py", sha=candidate.sha, timeout_s=30)
    assert (before.passed, after.passed, after.output) == (False, True, GOOD["mul.py"])


@pytest.mark.slow
async def test_publish_moves_the_runs_own_branch_by_compare_and_swap_and_no_other(build):
    rig = build()
    job = await own_job(rig)
    other = job.model_copy(update={"target": job.target.model_copy(update={"ref": "refs/heads/main"})})
    main = git(rig.repo, "rev-parse", "main")
    first = await rig.candidate(job, GOOD)
    for _ in range(2):  # as after a crash between the write and its record
        done = await rig.service.publish(rig.context(), other, first, expected_old=None)
        assert (done.ref, done.new) == (OWN, first.sha)
    second = await rig.candidate(job, {"mul.py": "mul = int.__mul__\n"}, base_sha=first.sha, round=1)
    with pytest.raises(TargetMoved):
        await rig.service.publish(rig.context(), job, second, expected_old=None)
    assert git(rig.repo, "rev-parse", OWN) == first.sha
    await rig.service.publish(rig.context(), job, second, expected_old=first.sha)
    assert (git(rig.repo, "rev-parse", OWN), git(rig.repo, "rev-parse", "main")) == (second.sha, main)
    assert git(rig.repo, "for-each-ref", "--format=%(refname)").split() == [OWN, "refs/heads/main"]
