"""Workers, reviewers and planners that lie: nothing is promoted, the reason is typed, the source is untouched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from main_job import Cli, Outcome, Source, leftovers, script, small_repository
from side_by_side import SideBySide, chosen


@dataclass(frozen=True)
class Lie:
    """``script``: functions in place of the honest ones. ``code``: the run's reason."""

    code: str
    script: tuple[str, ...]
    says: str = ""                             # what the reason's message has to name
    args: tuple[str, ...] = ("--max-rounds", "1")
    files: dict[str, str] = field(default_factory=dict)


def worker(name: str, *answers: str) -> str:
    """Worker ``name`` gives these answers, one a turn, then submits; the other one is honest."""
    return "\n".join([
        "def work(call, name):",
        f"    if name != 'worker:{name}':",
        "        return base.work(call, name)",
        f"    answers = [{', '.join(answers)}]",
        "    if call.turn < len(answers):",
        "        return answers[call.turn]",
        "    return submit(status='completed', summary='done', unresolved_risks=[])",
        "",
    ])


def alone(name: str, *answers: str) -> str:
    """As ``worker``, and the other one says that it did everything and does nothing."""
    return worker(name, *answers).replace("base.work(call, name)", "submit(status='completed', summary='all of it', unresolved_risks=[])")


def both(path: str, content: str, other_path: str, other_content: str) -> str:
    """``mul`` writes the first file, ``check`` the other."""
    other = f"base.submit_after({write(path, content)}, call)"
    return (
        "base.submit_after = lambda answer, call: answer if call.turn == 0 else "
        "submit(status='completed', summary='done', unresolved_risks=[])\n"
        + worker("check", write(other_path, other_content)).replace("base.work(call, name)", other)
    )


def command(text: str) -> str:
    return f"tool('run_command', command={text!r})"


def write(path: str, content: str) -> str:
    return f"tool('write_file', path={path!r}, content={content!r})"


def scopes(mul: list[str], check: list[str], **more: Any) -> str:
    return "\n".join([
        "def plan(data):",
        "    criteria = data['immutable_success_criteria']",
        f"    tasks = [{{**task('mul', {mul!r}), **{more!r}}}, task('check', {check!r})]",
        "    return submit(substantive=True, reason='two files', success_criteria=criteria, tasks=tasks)",
        "",
    ])


def reviewer(role: str, answer: str) -> str:
    """``role`` answers with ``answer``, in which ``bound`` holds the four values that it should name."""
    return "\n".join([
        "def review(data, name):",
        f"    if name != {role!r}:",
        "        return base.review(data, name)",
        "    bound = {'candidate_id': data['candidate']['id'], 'candidate_sha': data['candidate']['sha'],",
        "        'test_report_digest': data['test_report']['digest'], 'evidence_digest': data['evidence']['digest']}",
        f"    return {answer}",
        "",
    ])


RIGHT = "def mul(a, b):\n    return a * b\n"
RIGHT_MUL = write("mul.py", RIGHT)
HONEST = worker("mul", RIGHT_MUL)
PASSED = "candidate_passed=True, blocking_issues=[], evidence=[]"
NO_ADD = "import unittest\nimport mul\n\n\nclass T(unittest.TestCase):\n    def test_mul(self):\n        self.assertEqual(mul.mul(3, 4), 12)\n"
SKIPPED = (
    "import unittest\nimport calc\nimport mul\n\n\nclass T(unittest.TestCase):\n    @unittest.skip('later')\n"
    "    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n\n"
    "    def test_mul(self):\n        self.assertEqual(mul.mul(3, 4), 12)\n"
)
LIES: dict[str, Lie] = {
    # workers
    "says done and changed nothing": Lie("no_changes", (alone("mul"),)),
    "one of two did nothing": Lie("required_suite_failed", (worker("mul"),), "unit"),
    "tests fail": Lie("required_suite_failed", (worker("mul", write("mul.py", "def mul(a, b):\n    return a + b\n")),), "unit"),
    "tests fail in each round": Lie(
        "required_suite_failed", (worker("mul", write("mul.py", "def mul(a, b):\n    return a + b\n")),), "unit", args=()
    ),
    "gives up": Lie("agent_blocked", (
        "def work(call, name):\n    return submit(status='blocked', summary='I need a key', unresolved_risks=[])\n",), "I need a key"
    ),
    "writes outside its scope by tool": Lie("required_suite_failed", (worker("mul", write("calc.py", "x = 1\n")),)),
    "insists on writing outside its scope": Lie(
        "forbidden_access", (worker("mul", *(write(f"other{n}.py", "x = 1\n") for n in range(4))),), "other2.py"
    ),
    "writes outside its scope by command": Lie(
        "scope_violation", (worker("mul", RIGHT_MUL, command("echo 'x = 1' >> calc.py")),), "calc.py"
    ),
    "changes a mode outside its scope": Lie("scope_violation", (worker("mul", RIGHT_MUL, command("chmod +x calc.py")),), "calc.py"),
    "deletes outside its scope": Lie("scope_violation", (worker("mul", RIGHT_MUL, command("rm calc.py")),), "calc.py"),
    "renames into its scope": Lie("scope_violation", (worker("mul", command("mv calc.py mul.py")),), "calc.py"),
    "deletes a required test": Lie("required_suite_failed", (both("mul.py", RIGHT, "selfcheck.py", NO_ADD),), "test_add"),
    "skips a required test": Lie("required_suite_failed", (both("mul.py", RIGHT, "selfcheck.py", SKIPPED),), "test_add"),
    "edits .git and nothing else": Lie("no_changes", (
        alone("mul", command("echo '[core]\n\thooksPath = /workspace' >> .git/config; rm -rf .git/refs; echo x > .git/HEAD")),
    )),
    "plants a hook by tool": Lie("no_changes", (
        alone("mul", write(".git/hooks/post-checkout", "#!/bin/sh\ntouch /tmp/pwned\n")),
    )),
    "plants a hook below": Lie("reserved_path", (
        scopes(["mul.py", "deep/**"], ["selfcheck.py"]),
        worker("mul", RIGHT_MUL, command("mkdir -p deep/.GIT/hooks; echo 'touch /tmp/pwned' > deep/.GIT/hooks/post-checkout")),
    ), "deep/.GIT"),
    "plants a link out of the tree": Lie(
        "link_escape", (worker("mul", command("ln -s /etc/passwd mul.py")),), "mul.py"
    ),
    "plants a link that climbs out": Lie(
        "link_escape", (worker("mul", command("ln -s ../../outside mul.py")),), "mul.py"
    ),
    "makes an embedded repository": Lie("embedded_repository", (
        scopes(["mul.py", "inner/**"], ["selfcheck.py"]),
        worker("mul", RIGHT_MUL, command("git init -q inner && cd inner && touch a && git add a && git -c user.name=a -c user.email=a@b commit -q -m a")),
    ), "inner"),
    "makes a pipe": Lie("special_file", (worker("mul", command("mkfifo mul.py")),), "mul.py"),
    "edits the policy": Lie("scope_violation", (
        scopes(["**/*.py", "*.toml"], ["selfcheck.md"]),
        worker("mul", RIGHT_MUL, command("echo '[suites.unit]\ncommand = \"true\"' > capataz.toml")),
    ), "capataz.toml"),
    "edits a workflow": Lie("scope_violation", (
        worker("mul", RIGHT_MUL, command("mkdir -p .github/workflows; echo x > .github/workflows/ci.yml")),
    ), ".github/workflows/ci.yml"),
    "is stuck": Lie("agent_stuck", (worker("mul", *[command("exit 3")] * 5),)),
    # reviewers
    "verifier names another candidate": Lie(
        "review_not_bound", (HONEST, reviewer("verifier", f"submit(**{{**bound, 'candidate_id': 'c1'}}, {PASSED})")), "candidate_id"
    ),
    "refuter names another SHA": Lie(
        "review_not_bound", (HONEST, reviewer("refuter", f"submit(**{{**bound, 'candidate_sha': '0' * 40}}, {PASSED})")), "candidate_sha"
    ),
    "verifier names another evidence": Lie(
        "review_not_bound", (HONEST, reviewer("verifier", f"submit(**{{**bound, 'evidence_digest': '0' * 64}}, {PASSED})"))
    ),
    "refuter names another report": Lie(
        "review_not_bound", (HONEST, reviewer("refuter", f"submit(**{{**bound, 'test_report_digest': '0' * 64}}, {PASSED})"))
    ),
    "reducer names another evidence": Lie("review_not_bound", (HONEST, reviewer(
        "reducer", "submit(**{**bound, 'evidence_digest': '0' * 64}, summary='', acceptance_evidence=[], unresolved_risks=[])"
    ))),
    "passes with blocking issues": Lie("review_invalid", (
        HONEST, reviewer("verifier", "submit(**bound, candidate_passed=True, blocking_issues=['broken'], evidence=[])")
    )),
    "rejects for once": Lie("review_rejected", (
        HONEST, reviewer("refuter", "submit(**bound, candidate_passed=False, blocking_issues=['no docs'], evidence=[])")
    ), "no docs"),
    "rejects without an issue": Lie("review_rejected", (
        HONEST, reviewer("refuter", "submit(**bound, candidate_passed=False, blocking_issues=[], evidence=[])")
    )),
    "pass a failed suite": Lie("required_suite_failed", (
        worker("mul", write("mul.py", "mul = None\n")),
        reviewer("reducer", f"submit(**bound, {PASSED})").replace("name != 'reducer'", "name == 'reducer'"),
    )),
    "verifier returns junk": Lie("output_invalid", (HONEST, reviewer("verifier", "say('LGTM!')"))),
    "verifier submits junk": Lie("output_invalid", (HONEST, reviewer("verifier", "submit(verdict='LGTM', score=10)"))),
    "verifier submits no JSON": Lie("output_invalid", (HONEST, reviewer(
        "verifier", "raw({'role': 'assistant', 'content': None, 'tool_calls': "
        "[{'id': 'x', 'type': 'function', 'function': {'name': 'submit', 'arguments': '{\"candidate_id\": '}}]})"
    ))),
    # planners
    "planner's scopes overlap": Lie("overlapping_scopes", (scopes(["*.py"], ["selfcheck.py"]),), "selfcheck.py"),
    "planner's patterns overlap": Lie("overlapping_scopes", (scopes(["new/**"], ["**/*.txt"]),)),
    "planner names an unknown suite": Lie(
        "unknown_suite", (scopes(["mul.py"], ["selfcheck.py"], additional_suite_ids=["nightly"]),), "nightly"
    ),
    "planner names a protected path": Lie("scope_violation", (scopes(["mul.py", "capataz.toml"], ["selfcheck.py"]),), "capataz.toml"),
    "planner has one task twice": Lie("plan_invalid", (scopes(["mul.py"], ["selfcheck.py"], id="check"),), "check"),
    "planner gives no scope": Lie("plan_invalid", (scopes([], ["selfcheck.py"]),), "mul"),
    "planner's read-only task writes": Lie("plan_invalid", (scopes(["mul.py"], ["selfcheck.py"], read_only=True),), "read-only"),
    "planner returns junk": Lie("output_invalid", ("def plan(data):\n    return say('I would rather not')\n",)),
    "file against folder": Lie("candidate_conflict", (
        scopes(["thing", "mul.py"], ["thing/**", "selfcheck.py"]),
        worker("mul", RIGHT_MUL, write("thing", "a file\n")).replace("return base.work(call, name)", "return folder(call, name)"),
        "def folder(call, name):\n    if call.turn == 0:\n        return tool('write_file', path='thing/x', content='in a folder')\n"
        "    return submit(status='completed', summary='', unresolved_risks=[])\n",
    ), "thing"),
}
# Near relatives of what the others show; `make test-all` has them.
RELATIVES = {
    "one of two did nothing", "tests fail in each round", "changes a mode outside its scope", "renames into its scope",
    "plants a link that climbs out", "makes a pipe", "edits a workflow", "verifier names another evidence", "refuter names another report",
    "rejects without an issue", "verifier submits no JSON", "planner's patterns overlap", "planner has one task twice",
    "planner gives no scope", "planner's read-only task writes", "planner returns junk", "writes outside its scope by tool",
}
NO_WORKER_STARTS = [name for name, lie in LIES.items() if lie.code in ("overlapping_scopes", "unknown_suite", "plan_invalid") or name.startswith("planner")]


@dataclass(frozen=True)
class Told:
    """One lie, told: the source before and after, and what the command line said."""

    before: Source
    after: Source
    done: Outcome
    shown: dict[str, Any]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide[Told]]:
    folder = tmp_path_factory.mktemp("lies")

    def tell(name: str) -> Told:
        lie, place = LIES[name], folder / name.replace(" ", "-").replace("'", "")
        cli, repo = Cli(home, place / "log.jsonl"), small_repository(place / "repo", **lie.files)
        before = Source.of(repo)
        done = cli.do(repo, "--yes", *lie.args, script=script(place, *lie.script))
        return Told(before, Source.of(repo), done, cli.json("show", str(done.run_id)))

    results = SideBySide(chosen(request, "name"), tell)
    yield results
    results.wait()
    assert leftovers(home) == []


def cases(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.sweep) if name in RELATIVES else name for name in names]


@pytest.mark.parametrize("name", cases(LIES))
def test_a_lie_promotes_nothing_and_its_reason_is_typed(told: SideBySide[Told], name: str) -> None:
    lie, result = LIES[name], told[name]
    assert result.done.code == 1, result.done
    assert result.done.json == result.shown
    shown = result.shown
    assert (shown["state"], shown["outcome"]) == ("failed", "failed")
    assert shown["reason"]["code"] == lie.code, shown["reason"]
    assert lie.says in shown["reason"]["message"]
    assert shown["promotion"] is None and shown["approval"] is None
    assert result.after == result.before


@pytest.mark.parametrize("name", cases(NO_WORKER_STARTS))
def test_a_bad_plan_starts_no_worker(told: SideBySide[Told], name: str) -> None:
    assert told[name].done.code == 1
    assert "worker:" not in told[name].done.err
