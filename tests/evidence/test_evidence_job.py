from __future__ import annotations

import pytest
from evidence_rig import RUN, git, write

from capataz.contracts.coding import JobOptions
from capataz.contracts.errors import InvalidPolicy, NoSuites, RepositoryUnusable, UsageError

NO_TOML = {"calc.py": "def add(a, b):\n    return a + b\n"}


async def test_a_plain_job_is_resolved_and_pinned(rig):
    job = await rig.job(criteria=["it works"])
    assert job.target.ref == "refs/heads/main" and job.target.expected_old == job.request.base_sha == git(rig.repo, "rev-parse", "HEAD")
    assert job.request.success_criteria == ["it works"] and job.policy.source == "repository" and job.target.note is None
    assert (await rig.job()).request.success_criteria == ["Do the thing"]


async def test_a_detached_head_and_a_dirty_tree_send_the_result_elsewhere(rig):
    (rig.repo / "calc.py").write_text("# mine\n")
    job = await rig.job()
    assert job.target.ref == f"refs/heads/capataz/{RUN}" and job.target.expected_old is None
    assert "calc.py" in (job.target.note or "") and "git merge" in (job.target.note or "")
    git(rig.repo, "checkout", "-q", "--", "calc.py")
    git(rig.repo, "checkout", "-q", "--detach")
    job = await rig.job()
    assert job.target.ref == f"refs/heads/capataz/{RUN}" and "detached" in (job.target.note or "")


async def test_targets_and_bases(rig):
    first = git(rig.repo, "rev-parse", "HEAD")
    git(rig.repo, "commit", "-q", "--allow-empty", "-m", "second")
    git(rig.repo, "branch", "old", first)
    assert (await rig.job(target="old")).request.base_sha == first
    new = await rig.job(target="fresh/branch")
    assert new.target.ref == "refs/heads/fresh/branch" and new.target.expected_old is None and new.request.base_sha != first
    assert (await rig.job(target="refs/heads/fresh", base="HEAD~1")).request.base_sha == first
    with pytest.raises(UsageError, match="drop commits"):
        await rig.job(target="main", base="HEAD~1")
    away = await rig.job(base="HEAD~1")
    assert away.target.ref == f"refs/heads/capataz/{RUN}" and "--base" in (away.target.note or "")
    for bad in ("a..b", "refs/tags/v1"):
        with pytest.raises(UsageError):
            await rig.job(target=bad)
    with pytest.raises(RepositoryUnusable):
        await rig.job(base="nonsense")


async def test_a_policy_may_send_results_to_branches_of_their_own(build):
    rig = build({**NO_TOML, "capataz.toml": '[suites.u]\ncommand = "true"\n[publish]\nbranch = "bots/{run}"\n'})
    job = await rig.job()
    assert job.target.ref == f"refs/heads/bots/{RUN}" and job.target.expected_old is None


async def test_bad_calls_leave_nothing_behind(build):
    rig = build(NO_TOML)
    for error, kwargs in [
        (NoSuites, {}),
        (UsageError, {"request": " \n"}),
        (UsageError, {"criteria": [" "]}),
        (UsageError, {"options": JobOptions(sandbox="local")}),
        (InvalidPolicy, {"policy_file": rig.home / "gone.toml"}),
    ]:
        with pytest.raises(error) as caught:
            await rig.job(**kwargs)
        assert "\n" not in str(caught.value)
    assert not list((rig.home / "runs").glob("*"))


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"test_calc.py": "def test_add(): pass\n"}, "python3 -m pytest -q"),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n", "tests/test_a.py": "import unittest\n"}, "python3 -m pytest -q"),
        ({"test_calc.py": "import unittest\nclass T(unittest.TestCase): pass\n"}, "python3 -m unittest discover -q"),
        ({"tests/test_a.py": "import unittest\nclass T(unittest.TestCase): pass\n"}, "python3 -m unittest discover -q -s tests"),
        ({"tests/__init__.py": "", "tests/test_a.py": "from unittest import *\nclass T(TestCase): pass\n"}, "python3 -m unittest discover -q"),
        ({"package.json": '{"scripts": {"test": "node check.js"}}'}, "npm test"),
        ({"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}', "a.test.js": "1"}, "node --test"),
        ({"go.mod": "module m\n", "a_test.go": "package a\n"}, "go test ./..."),
        ({"Cargo.toml": "[package]\n"}, "cargo test"),
    ],
)
async def test_suites_are_detected_and_marked(build, files, command):
    job = await build({**NO_TOML, **files}).job()
    assert [(s.command, s.detected, s.required) for s in job.policy.suites] == [(command, True, True)]


async def test_no_required_suite_is_a_refusal(build):
    rig = build({**NO_TOML, "test_a.py": "def test_a(): pass\n", "capataz.toml": '[suites.u]\ncommand = "true"\nrequired = false\n'})
    with pytest.raises(NoSuites, match="required = true"):
        await rig.job()


async def test_a_policy_from_outside_wins_and_the_committed_one_counts_not_the_files(build, tmp_path):
    rig = build({**NO_TOML, "capataz.toml": '[suites.unit]\ncommand = "true"\n', "AGENTS.md": "Use tabs.\n" + "x" * 40000})
    write(rig.repo, {"capataz.toml": "[nonsense]\n"})
    job = await rig.job()
    assert job.policy.required_suite_ids() == ["unit"]
    assert job.policy.guidance["AGENTS.md"].startswith("Use tabs.") and "more bytes left out" in job.policy.guidance["AGENTS.md"]
    outer = tmp_path / "policy.toml"
    outer.write_text('[suites.strict]\ncommand = "false"\n')
    won = await rig.job(policy_file=outer)
    assert won.policy.required_suite_ids() == ["strict"] and won.policy.source == "file"
    outer.write_text('[limits]\nmemory = "1GiB"\n')
    both = await rig.job(policy_file=outer)
    assert both.policy.required_suite_ids() == ["unit"] and both.policy.limits.memory == 1 << 30


async def test_a_policy_that_is_a_link_is_refused(build):
    rig = build({**NO_TOML, "real.toml": '[suites.u]\ncommand = "true"\n'})
    (rig.repo / "capataz.toml").symlink_to("real.toml")
    git(rig.repo, "add", "-A")
    git(rig.repo, "commit", "-q", "-m", "link")
    with pytest.raises(InvalidPolicy, match="regular file"):
        await rig.job()
