from __future__ import annotations

import pytest

from capataz.contracts.errors import InvalidPolicy
from capataz.evidence.policy import parse_policy

FULL = b"""
require_new_tests = true
[environment]
stack = "node@22"
env = { CI = "1" }
setup = ["npm ci"]
setup_network = "registries"
[limits]
memory = "1GiB"
pids = 64
disk = "500MB"
command_timeout = "1m30s"
max_file = "1MiB"
[suites.unit]
fast = true
command = "npm test"
timeout = "2m"
test_edits = "none"
protects = ["test/**"]
[suites.lint]
command = "eslint ."
required = false
[scopes]
protected = ["capataz.toml", "ops/**"]
hidden = ["secrets/**"]
[publish]
branch = "capataz/{run}"
[models.mine]
base_url = "http://localhost"
"""


def test_a_full_file_says_what_it_means():
    policy = parse_policy(FULL, source="capataz.toml", outside=False)
    assert policy.limits.model_dump() == {
        "memory": 1 << 30, "pids": 64, "disk": 500_000_000, "command_timeout": 90.0, "max_file": 1 << 20,
    }
    unit = policy.suite("unit")
    assert unit and unit.fast and unit.timeout == 120 and unit.protects == ["test/**"] and unit.test_edits == "none"
    assert policy.required_suite_ids() == ["unit"] and policy.require_new_tests
    assert policy.environment.setup_network == "registries" and policy.publish.branch == "capataz/{run}"
    assert policy.scopes.protected == ["capataz.toml", "ops/**"] and policy.source == "repository"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[suites.unit]\ncomand = 'x'", ["suites.unit.comand", "did you mean `command`"]),
        ("[suites.unit]\nrequired = true", ["suites.unit.command", "missing"]),
        ("[suites.unit]\ncommand = 3", ["suites.unit.command", "a string"]),
        ("[suites.unit]\ncommand = 'x'\nrequired = 'yes'", ["suites.unit.required", "true or false"]),
        ("[suites.unit]\ncommand = 'x'\ntimeout = 'soon'", ["suites.unit.timeout", "no duration"]),
        ("[suites.unit]\ncommand = 'x'\ntimeout = false", ["suites.unit.timeout"]),
        ("[suites.unit]\ncommand = 'x'\nnetwork = 'host'", ["suites.unit.network", "none"]),
        ("[suites.unit]\ncommand = 'x'\ntest_edits = 'some'", ["suites.unit.test_edits", "add, none, any"]),
        ("[suites.unit]\ncommand = 'x'\ntest_edits = 'none'", ["protects"]),
        ("[suites.unit]\ncommand = 'x'\nprotects = ['a//b']", ["suites.unit.protects"]),
        ("[suites]\nunit = 'pytest'", ["suites.unit", "must be a table"]),
        ("[suites.'a b']\ncommand = 'x'", ["suites.a b", "id"]),
        ("[limits]\nmemory = 'lots'", ["limits.memory", "no size"]),
        ("[limits]\npids = '64'", ["limits.pids"]),
        ("[environment]\nstack = 'pyton'", ["environment.stack", "did you mean `python`"]),
        ("[environment]\nstack = 'node@lts'", ["environment.stack", "no version"]),
        ("[environment]\nenv = { CI = 1 }", ["environment.env.CI", "a string"]),
        ("[environment]\nsetup = 'pip install x'", ["environment.setup", "list of strings"]),
        ("[environment]\nsetup_network = 'all'", ["environment.setup_network"]),
        ("[environment]\nsetup_network = ['http://x/']", ["environment.setup_network", "no host name"]),
        ("[environment]\nread_only = ['/etc']", ["environment.read_only", "--policy"]),
        ("[scopes]\nprotected = ['']", ["scopes.protected"]),
        ("[publish]\nbranch = 'a..b'", ["publish.branch"]),
        ("[publish]\nbranch = 'x/{task}'", ["publish.branch", "{run}"]),
        ("suits = 1", ["suits", "did you mean `suites`"]),
        ("require_new_tests = 1", ["require_new_tests"]),
        ("[suites.unit", ["no valid TOML"]),
    ],
)
def test_every_mistake_names_the_key_and_the_way_out(text: str, words: list[str]):
    with pytest.raises(InvalidPolicy) as error:
        parse_policy(text.encode(), source="capataz.toml", outside=False)
    assert all(word in str(error.value) for word in ["capataz.toml", *words]), str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_and_endless_nesting_are_refused():
    for data in (b"\xff\xfe", b"a = " + b"[" * 20000, b"x" * (2 << 20)):
        with pytest.raises(InvalidPolicy):
            parse_policy(data, source="capataz.toml", outside=False)


def test_a_policy_from_outside_may_mount_what_exists(tmp_path):
    policy = parse_policy(f"[environment]\nread_only = ['{tmp_path}']".encode(), source="p.toml", outside=True)
    assert policy.environment.read_only == [str(tmp_path)] and policy.source == "file"
    with pytest.raises(InvalidPolicy, match="exists"):
        parse_policy(f"[environment]\nread_only = ['{tmp_path}/gone']".encode(), source="p.toml", outside=True)
