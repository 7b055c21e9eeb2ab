from __future__ import annotations

import errno
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import RUN, FakeApp, ask_record

from capataz.contracts.errors import ProviderRejected, RepositoryUnusable, SandboxUnavailable, StoreUnavailable


def test_do_passes_every_option(cli: Any, app: FakeApp, tmp_path: Path) -> None:
    policy, script = tmp_path / "p.toml", tmp_path / "s.py"
    policy.touch()
    script.touch()
    said = cli(
        "do", "Mend it", "--repo", str(tmp_path), "--criterion", "a", "--criterion", "b", "--model", f"scripted:{script}", "--program", "single",
        "--target", "dev", "--base", "HEAD~1", "--max-rounds", "2", "--max-workers", "1", "--budget-usd", "2.50", "--timeout", "1h30m",
        "--max-turns", "7", "--policy", str(policy), "--sandbox", "local", "--trust-repository", "--no-promote", "--json",
    )  # fmt: skip
    request = app.calls[0][1]
    assert said.code == 0, said.err
    assert (request.request, request.repository, request.criteria) == ("Mend it", tmp_path, ("a", "b"))
    assert (request.model, request.program, request.target, request.base) == (f"scripted:{script}", "single", "dev", "HEAD~1")
    assert (request.max_rounds, request.max_workers, request.max_turns) == (2, 1, 7)
    assert (request.budget_usd, request.timeout_s, request.policy) == (Decimal("2.50"), 5400.0, policy)
    assert (request.sandbox, request.trust_repository, request.approval) == ("local", True, "no_promote")
    assert said.json()["outcome"] == "promoted"


def test_a_scripts_path_becomes_absolute(cli: Any, app: FakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.py").touch()
    monkeypatch.chdir(tmp_path)
    assert cli("do", "x", "--model", "scripted:s.py").code == 0
    assert app.calls[0][1].model == f"scripted:{tmp_path / 's.py'}"
    assert app.calls[0][1].repository == tmp_path


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--max-rounds", "4"], "--max-rounds"),
        (["--max-rounds", "0"], "--max-rounds"),
        (["--max-workers", "5"], "--max-workers"),
        (["--max-workers", "two"], "--max-workers"),
        (["--max-turns", "0"], "--max-turns"),
        (["--budget-usd", "-1"], "amount of money"),
        (["--budget-usd", "lots"], "amount of money"),
        (["--timeout", "soon"], "duration"),
        (["--timeout", "0"], "duration"),
        (["--yes", "--no-promote"], "exclude each other"),
        (["--sandbox", "local"], "--trust-repository"),
        (["--sandbox", "chroot"], "--sandbox"),
        (["--repo", "/no-such-place"], "/no-such-place"),
        (["--policy", "/no-such-place.toml"], "/no-such-place.toml"),
        (["--model", "scripted:/no-such-place.py"], "/no-such-place.py"),
        (["--criterion", "  "], "--criterion is empty"),
        (["--wat"], "--wat"),
        (["extra"], "extra"),
    ],
)
def test_wrong_use_is_one_line_and_64(cli: Any, app: FakeApp, args: list[str], named: str) -> None:
    said = cli("do", "x", *args)
    assert (said.code, said.out, app.calls) == (64, "", [])
    assert said.err.count("\n") == 1 and named in said.err
    assert "Traceback" not in said.err


def test_an_empty_request_is_refused(cli: Any, app: FakeApp) -> None:
    assert cli("do", " ").code == 64
    assert cli("do").code == 64
    assert cli("do", "\udcff").code == 64
    assert app.calls == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RepositoryUnusable("no commit yet"), 64),
        (ProviderRejected("bad key"), 3),
        (SandboxUnavailable("enable namespaces"), 3),
        (StoreUnavailable("no database"), 3),
        (ValueError("a bug"), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 3),
        (OSError(errno.ENOENT, "No such file or directory"), 1),
    ],
)
def test_errors_give_their_code_and_one_json_object(cli: Any, app: FakeApp, error: Exception, code: int) -> None:
    app.fail = error
    said = cli("do", "x", "--json")
    assert said.code == code
    found = said.json()["error"]
    assert set(found) == {"code", "message"}
    assert found["code"] == getattr(error, "code", "os_error" if isinstance(error, OSError) else "internal_error")
    assert "Traceback" not in said.err


def test_debug_shows_the_traceback(cli: Any, app: FakeApp) -> None:
    app.fail = ValueError("a bug")
    assert "Traceback" in cli("do", "x", "--debug").err


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"state": "completed", "outcome": "promoted"}, 0),
        ({"state": "completed", "outcome": "report"}, 0),
        ({"state": "completed", "outcome": "declined"}, 2),
        ({"state": "failed", "outcome": "failed", "reason": {"code": "required_suite_failed", "message": "m"}}, 1),
        ({"state": "failed", "outcome": "failed", "reason": {"code": "provider_unavailable", "message": "m"}}, 3),
        ({"state": "failed", "outcome": None, "reason": {"code": "script_error", "message": "m"}}, 3),
        ({"state": "cancelled", "outcome": "cancelled"}, 130),
        ({"state": "parked"}, 0),
    ],
)
def test_the_exit_code_is_the_outcomes(cli: Any, app: FakeApp, end: dict[str, Any], code: int) -> None:
    app.end = end
    said = cli("do", "x", "--json")
    assert said.code == code
    assert said.json()["state"] == end["state"]


def test_a_parked_run_says_how_to_answer(cli: Any, app: FakeApp) -> None:
    app.end = {"state": "parked"}
    app.journal.questions["a1"] = ask_record()
    said = cli("do", "x")
    assert said.code == 0
    assert "capataz answer a1 approve\n           or: capataz answer a1 decline" in said.err
    assert f"capataz resume {RUN}" in said.err


def test_detach_does_not_drive(cli: Any, app: FakeApp) -> None:
    said = cli("do", "x", "--detach", "--json")
    assert [call[0] for call in app.calls] == ["do", "detach"]
    assert said.json()["run_id"] == RUN


def test_run_takes_json_or_a_file(cli: Any, app: FakeApp, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"pr": 42}')
    assert cli("run", "a.py:p", "--input", f"@{tmp_path / 'in.json'}").code == 0
    assert cli("run", "a.py:p", "--input", "[1]").code == 0
    assert [call[1].input for call in app.calls if call[0] == "run"] == [{"pr": 42}, [1]]
    assert cli("run", "a.py:p", "--input", "{").code == 64
    assert cli("run", "a.py:p", "--input", "@/no-such-place").code == 64


def test_help_groups_the_verbs_and_names_each_once(cli: Any) -> None:
    text = cli("--help").out
    assert "Work:\n  do " in text and "Look:\n  ps " in text
    lines = [line.split()[0] for line in text.partition("Work:")[2].partition("Begin with:")[0].splitlines() if re.match(r"  \w", line)]
    assert len(lines) == len(set(lines)) and {"do", "resume", "answer", "check", "db"} <= set(lines)


def test_unquoted_words_are_told_from_other_mistakes(cli: Any) -> None:
    said = cli("do", "Fix", "the", "bug")
    assert said.code == 64 and "put quotes around a text of several words" in said.err
    said = cli("run", "flows.py:nightly", "--input", "hello")
    assert said.code == 64 and """--input '"text"'""" in said.err and said.err.count("\n") == 1
