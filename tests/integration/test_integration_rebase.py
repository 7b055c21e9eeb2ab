"""A target that moved: ``capataz rebase`` moves the candidate onto it, and makes tests, reviews and approval anew."""

from __future__ import annotations

from pathlib import Path

from main_job import Cli, git, small_repository


def commit(repo: Path, name: str, text: str) -> str:
    (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", f"somebody else's {name}")
    return git(repo, "rev-parse", "main")


def moved_on(cli: Cli, repo: Path, name: str, text: str) -> tuple[str, str]:
    """A run that failed since somebody else committed before its approval; the new tip of the target."""
    shown = cli.do(repo).json
    tip = commit(repo, name, text)
    (ask,) = [a["ask_id"] for a in cli.json("asks", "--run", shown["run_id"])["asks"]]
    refused = cli.run("answer", ask, "approve", "--json")
    assert refused.json["reason"]["code"] == "target_moved", refused
    return shown["run_id"], tip


def test_a_rebase_promotes_on_what_the_target_has_become(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    run_id, tip = moved_on(cli, repo, "other.txt", "somebody else\n")
    asked = cli.run("rebase", run_id, "--json")
    assert asked.code == 0 and asked.json["state"] == "parked", asked
    (ask,) = [a["ask_id"] for a in cli.json("asks", "--run", asked.json["run_id"])["asks"]]
    done = cli.run("answer", ask, "approve", "--json")
    assert done.json["outcome"] == "promoted" and done.json["candidate"]["base_sha"] == tip, done
    assert git(repo, "rev-parse", "main") == done.json["candidate"]["sha"]
    assert (repo / "other.txt").exists() and (repo / "mul.py").exists()
    assert len(done.json["rounds"]) == 1 and done.json["suites"][0]["exit_code"] == 0


def test_a_rebase_that_conflicts_says_where(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    run_id, tip = moved_on(cli, repo, "mul.py", "def mul(*numbers):\n    raise NotImplementedError\n")
    done = cli.run("rebase", run_id, "--json")
    assert done.code == 1 and done.json["reason"]["code"] == "candidate_conflict" and "mul.py" in done.json["reason"]["message"], done
    assert git(repo, "rev-parse", "main") == tip
    unknown = cli.run("rebase", "r0000000000000000", "--json")
    assert unknown.code == 64 and unknown.json["error"]["code"] == "not_found", unknown
