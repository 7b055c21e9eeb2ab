from __future__ import annotations

import shutil
import sys

import pytest
from evidence_rig import SELFCHECK

from capataz.contracts.coding import JobOptions
from capataz.contracts.errors import UnknownSuite

MORE = SELFCHECK + "\n    def test_more(self):\n        self.assertEqual(calc.add(0, 0), 0)\n"


async def report(rig, files, **job):
    made = await rig.job(**job)
    return await rig.service.test(rig.context(), made, await rig.candidate(made, files), suite_ids=[])


def toml(command: str, more: str = "") -> dict[str, str]:
    return {"calc.py": "def add(a, b):\n    return a + b\n", "capataz.toml": f"[suites.unit]\ncommand = {command!r}\n{more}"}


async def test_a_good_candidate_passes_and_its_log_and_ids_are_kept(rig):
    made = await report(rig, {"selfcheck.py": MORE})
    (suite,) = made.suites
    assert made.passed and suite.passed and suite.exit_code == 0 and suite.tests_collected == 2 and suite.reason == "exit"
    assert b"OK" in await rig.blobs.get(suite.artifact_uri)
    assert made.test_edits == [b"selfcheck.py"] and any("forged" in n for n in made.notes)
    assert rig.blobs.data[f"blob:{made.digest}"]
    kinds = [t for t, _ in rig.events]
    assert "suite.ended" in kinds and kinds.count("sandbox.started") == kinds.count("sandbox.ended") == 2
    assert all(spec.network == "none" for spec in rig.sandbox.specs)
    workspaces = list((rig.home / "runs").glob("*/ws/suite-*"))
    assert workspaces == []


async def test_a_failing_suite_keeps_the_processs_own_exit_code(build):
    rig = build(toml("echo out; echo err >&2; exit 7"))
    made = await report(rig, {"x": "x"})
    assert not made.passed and made.suites[0].exit_code == 7 and made.suites[0].reason == "exit"
    assert await rig.blobs.get(made.suites[0].artifact_uri) == b"out\nerr\n"


async def test_a_suite_that_cannot_start_or_runs_too_long_has_failed(build):
    rig = build(toml("no-such-command", '[suites.slow]\ncommand = "sleep 60"\ntimeout = "300ms"\n'))
    made = await report(rig, {"x": "x"})
    assert [(s.reason, s.passed) for s in made.suites] == [("not_started", False), ("timeout", False)] and not made.passed
    assert made.suites[0].exit_code == 127


async def test_the_base_is_run_once_for_its_ids(rig):
    await report(rig, {"selfcheck.py": MORE})
    rig.sandbox.specs.clear()
    job = await rig.job()
    await rig.service.test(rig.context(), job, await rig.candidate(job, {"y": "y"}, round=1), suite_ids=[])
    assert len(rig.sandbox.specs) == 1 + 0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"selfcheck.py": "import unittest\n"}, "not collected any more: selfcheck.T.test_add"),
        ({"selfcheck.py": SELFCHECK.replace("test_add", "test_sum")}, "not collected any more: selfcheck.T.test_add"),
        ({"selfcheck.py": SELFCHECK.replace("    def test", "    @unittest.skip('x')\n    def test")}, "skipped or expected to fail"),
        ({"selfcheck.py": SELFCHECK.replace("class T", "@unittest.skip('x')\nclass T")}, "skipped or expected to fail"),
        ({"selfcheck.py": SELFCHECK.replace("    def test", "    @unittest.expectedFailure\n    def test").replace(", 3)", ", 4)")}, "expected"),
        ({"selfcheck.py": SELFCHECK.replace("        self.assert", "        self.skipTest('x')\n        self.assert")}, "skipped"),
        ({"selfcheck.py": SELFCHECK + "\nimport os\nos._exit(0)\n"}, "not collected any more"),
        ({"unittest.py": "import sys\nsys.exit(0)\n"}, "not collected any more"),
        ({"calc.py": "import atexit, os\natexit.register(os._exit, 0)\nadd = max\n"}, "failed and the suite ended with exit code 0"),
    ],
)
async def test_a_candidate_that_weakens_a_required_suite_fails(rig, files, words):
    made = await report(rig, files)
    (suite,) = made.suites
    assert not made.passed and not suite.passed and suite.reason in ("test_edits", "exit")
    assert any(words in f for f in suite.findings), suite.findings
    if suite.exit_code == 0:
        assert suite.reason == "test_edits"


async def test_edits_none_and_any(build):
    none = build(toml("true", 'test_edits = "none"\nprotects = ["checks/**"]\n') | {"checks/a.py": "1\n"})
    made = await report(none, {"checks/a.py": "2\n"})
    assert not made.passed and made.suites[0].reason == "test_edits" and "checks/a.py" in made.suites[0].findings[0]
    job = await none.job()
    good = await none.service.test(none.context(), job, await none.candidate(job, {"x": "x"}, round=1), suite_ids=[])
    assert good.passed


async def test_any_edit_is_allowed_where_the_policy_says_so(build):
    rig = build(toml("python3 -m unittest -q selfcheck", 'test_edits = "any"\n') | {"selfcheck.py": SELFCHECK})
    made = await report(rig, {"selfcheck.py": SELFCHECK.replace("test_add", "test_sum")})
    assert made.passed and made.suites[0].findings == [] and made.test_edits == [b"selfcheck.py"]


async def test_where_ids_cannot_be_listed_deleted_files_are_refused_and_the_report_says_so(build):
    rig = build(toml("true", 'protects = ["checks/**"]\n') | {"checks/a.sh": "1\n", "checks/b.sh": "1\n"})
    made = await report(rig, {"checks/a.sh": None, "checks/b.sh": "2\n"})
    assert not made.passed and "checks/a.sh" in made.suites[0].findings[0] and "b.sh" not in made.suites[0].findings[0]
    assert any("cannot be listed" in n for n in made.notes) and made.suites[0].tests_collected is None


async def test_new_tests_can_be_required(rig):
    options = JobOptions(sandbox="local", trust_repository=True, require_new_tests=True)
    made = await report(rig, {"mul.py": "m\n"}, options=options)
    assert not made.passed and made.suites[0].reason == "new_tests_missing" and made.suites[0].exit_code == 0
    job = await rig.job(options=options)
    more = await rig.service.test(rig.context(), job, await rig.candidate(job, {"selfcheck.py": MORE}, round=1), suite_ids=[])
    assert more.passed


async def test_a_base_that_fails_still_gives_its_ids(build):
    rig = build({"calc.py": "def add(a, b):\n    return 0\n", "selfcheck.py": SELFCHECK,
                 "capataz.toml": '[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\n'})
    good = "def add(a, b):\n    return a + b\n"
    assert (await report(rig, {"calc.py": good})).passed
    job = await rig.job()
    cheat = await rig.candidate(job, {"calc.py": good, "selfcheck.py": SELFCHECK.replace("test_add", "test_x")}, round=1)
    assert not (await rig.service.test(rig.context(), job, cheat, suite_ids=[])).passed


async def test_a_base_that_was_content_with_failures_may_stay_so(build):
    """A suite that runs tests which are meant to fail, as those of test frameworks do."""
    content = "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    return 0\n"
    rig = build({"calc.py": content, "selfcheck.py": SELFCHECK, "capataz.toml": '[suites.unit]\ncommand = "python3 -m unittest -q selfcheck"\n'})
    assert (await report(rig, {"x": "x"})).passed


async def test_unknown_and_additional_suites(build):
    rig = build(toml("true", '[suites.lint]\ncommand = "exit 3"\nrequired = false\n'))
    job = await rig.job()
    candidate = await rig.candidate(job, {"x": "x"})
    assert [s.id for s in (await rig.service.test(rig.context(), job, candidate, suite_ids=[])).suites] == ["unit"]
    both = await rig.service.test(rig.context(), job, candidate, suite_ids=["lint"])
    assert [s.id for s in both.suites] == ["unit", "lint"] and not both.passed
    with pytest.raises(UnknownSuite):
        await rig.service.test(rig.context(), job, candidate, suite_ids=["nope"])


PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
TESTS = "import pytest\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_n(n):\n    assert n\n\ndef test_b():\n    assert True\n"


WEAKER: list[tuple[dict[str, str], str]] = [
    ({"test_x.py": TESTS.replace("[1, 2]", "[1]")}, "not collected any more: test_x.py::test_n[2]"),
    ({"test_x.py": TESTS.replace("def test_b", "@pytest.mark.skip\ndef test_b")}, "test_x.py::test_b"),
    ({"test_x.py": TESTS.replace("def test_b", "@pytest.mark.xfail\ndef test_b")}, "expected to fail: test_x.py::test_b"),
    ({"conftest.py": "collect_ignore = ['test_x.py']\n", "test_y.py": "def test_y(): pass\n"}, "3 tests of the base not collected"),
    ({"pytest.ini": "[pytest]\naddopts = -k test_n\n"}, "test_x.py::test_b"),
    ({"pytest.ini": "[pytest]\naddopts = -p no:capataz_reporter\n"}, "not collected any more"),
    ({"pytest.ini": "[pytest]\naddopts = --collect-only\n"}, "collected but not run"),
    ({"conftest.py": "import pytest\ndef pytest_runtest_setup(item):\n    pytest.exit('x', returncode=0)\n"}, "not run"),
    (
        {"test_x.py": TESTS.replace("assert True", "assert 0"), "conftest.py": "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n"},
        "exit code 0 all the same: test_x.py::test_b",
    ),
]


@pytest.mark.slow
async def test_pytest_ids_are_guarded(build):
    rig = build(toml(PYTEST) | {"test_x.py": TESTS})
    job = await rig.job()
    for number, (files, words) in enumerate(WEAKER):
        candidate = await rig.candidate(job, files, round=number)
        made = await rig.service.test(rig.context(), job, candidate, suite_ids=[])
        assert not made.passed and any(words in f for f in made.suites[0].findings), (files, made.suites[0])


@pytest.mark.slow
async def test_pytest_of_unittest_cases_counts_each_test_once(build):
    rig = build(toml(PYTEST) | {"test_c.py": SELFCHECK})
    made = await report(rig, {"test_c.py": MORE})
    assert made.passed and made.suites[0].tests_collected == 2


NODE = "const {test} = require('node:test');\ntest('one', () => {});\ntest('two', () => {});\n"


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
@pytest.mark.parametrize("command", ["node --test", "npm test"])
async def test_node_ids_are_guarded(build, command):
    rig = build(toml(command) | {"a.test.js": NODE, "package.json": '{"scripts": {"test": "node --test"}}'})
    good = await report(rig, {"a.test.js": NODE + "test('three', () => {});\n"})
    assert good.passed and good.suites[0].tests_collected == 3, rig.blobs.data[good.suites[0].artifact_uri]
    job = await rig.job()
    for number, text in enumerate([NODE.replace("test('two'", "test.skip('two'"), NODE.replace("'two'", "'zwei'")]):
        candidate = await rig.candidate(job, {"a.test.js": text}, round=number + 1)
        made = await rig.service.test(rig.context(), job, candidate, suite_ids=[])
        assert not made.passed and "a.test.js > two" in made.suites[0].findings[0]
