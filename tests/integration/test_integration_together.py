"""Several jobs at the same time: on one repository, and on many."""

from __future__ import annotations

from pathlib import Path

import pytest
from main_job import Cli, Source, do_args, finish, git, leftovers, log_lines, repeated_calls, small_repository


def test_two_jobs_on_one_repository(cli: Cli, home: Path, tmp_path: Path) -> None:
    """Both start from the same commit: the first to promote wins, the other finds the target moved and writes nothing."""
    repo = small_repository(tmp_path / "repo")
    base = git(repo, "rev-parse", "main")
    done = [finish(p) for p in [cli.start(*do_args(repo), "--yes") for _ in range(2)]]
    shown = [d.json for d in done]
    promoted = [s for s in shown if s["outcome"] == "promoted"]
    assert [s["candidate"]["original_base_sha"] for s in shown] == [base, base]
    main = [s for s in promoted if s["promotion"]["ref"] == "refs/heads/main"]
    assert len(main) == 1, done
    assert git(repo, "rev-parse", "main") == main[0]["candidate"]["sha"]
    for one, code in zip(shown, [d.code for d in done], strict=True):
        if one["outcome"] != "promoted":
            assert (code, one["reason"]["code"]) == (1, "target_moved"), one
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "fsck", "--no-dangling") == ""
    assert leftovers(home) == []


def test_one_run_is_carried_on_by_one_process(cli: Cli, home: Path, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    killed = cli.run(*do_args(repo), "--yes", CAPATAZ_FAULT="freeze.before:1")
    assert killed.code == -9 and killed.run_id is not None
    done = [finish(p) for p in [cli.start("resume", killed.run_id, "--json") for _ in range(3)]]
    assert sorted({d.code for d in done}) in ([0], [0, 64]), done
    for one in done:
        if one.code == 64:
            assert one.json["error"]["code"] == "run_not_resumable"
        else:
            assert one.json["outcome"] == "promoted"
    assert repeated_calls(log_lines(cli.script_log)) <= cli.json("show", killed.run_id)["usage"]["repeated_model_calls"]
    assert git(repo, "reflog", "show", "main").count("capataz: promote") == 1
    assert leftovers(home) == []


@pytest.mark.parametrize("number", [3, pytest.param(10, marks=pytest.mark.sweep)])
def test_jobs_on_many_repositories(cli: Cli, home: Path, tmp_path: Path, number: int) -> None:
    repos = [small_repository(tmp_path / f"repo{n}") for n in range(number)]
    before = [Source.of(repo) for repo in repos]
    started = [cli.start(*do_args(repo), "--yes") for repo in repos]
    for repo, then, process in zip(repos, before, started, strict=True):
        done = finish(process, 900)
        assert done.code == 0, done
        assert done.json["outcome"] == "promoted"
        assert git(repo, "rev-parse", "main") == done.json["candidate"]["sha"]
        assert Source.of(repo).config == then.config
    assert leftovers(home) == []
    shas = {git(repo, "rev-parse", "main^{tree}") for repo in repos}
    assert len(shas) == 1


def test_a_home_is_made_by_two_commands_at_once(tmp_path: Path) -> None:
    """Two processes that start at once share one database server, also where a path has spaces and odd letters."""
    home = tmp_path / "h\u00f3me of m\u00edne"
    cli = Cli(home, tmp_path / "log.jsonl")
    try:
        done = [finish(p) for p in [cli.start("ps", "--json") for _ in range(3)]]
        assert [d.code for d in done] == [0, 0, 0], done
        assert [d.json for d in done] == [{"runs": []}] * 3
    finally:
        cli.run("db", "stop")
    assert leftovers(home) == []
