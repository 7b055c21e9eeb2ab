"""The main job on odd but legal repositories; and what workers do to odd files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from main_job import CASES, GIT_ENV, Cli, Outcome, Source, git, leftovers, script
from side_by_side import SideBySide, chosen

sys.path.insert(0, str(CASES))
import odd_projects

OWN_BRANCH = {"detached", "dirty"}
BRANCH = {"linked_worktree": "side"}


@dataclass(frozen=True)
class Done:
    repo: Path
    before: Source
    after: Source
    done: Outcome


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide[Done]]:
    folder = tmp_path_factory.mktemp("odd")

    def work(name: str) -> Done:
        repo = odd_projects.PROJECTS[name](folder / name / "repo")
        before = _source(repo)
        done = Cli(home, folder / name / "log.jsonl").do(repo, "--yes")
        return Done(repo, before, _source(repo), done)

    results = SideBySide(chosen(request, "name"), work)
    yield results
    results.wait()
    assert leftovers(home) == []


def _source(repo: Path) -> Source:
    """Of a linked worktree: its own index and HEAD lie in the main repository; its files are what can be seen here."""
    if (repo / ".git").is_file():
        return Source(git(repo, "for-each-ref"), b"", b"", "", {})
    return Source.of(repo)


# Nothing that these show is of `capataz` as a whole: the room's own tests have them in short.
LONG = {"alternates", "case_only", "rename_and_edit", "lfs_pointer", "binary", "crlf", "non_utf8", "sha256_objects"}
ALL = [pytest.param(name, marks=pytest.mark.sweep) if name in LONG else name for name in odd_projects.PROJECTS]


@pytest.mark.parametrize("name", ALL)
def test_the_job_is_done_and_only_the_target_changes(jobs: SideBySide[Done], name: str) -> None:
    job = jobs[name]
    assert job.done.code == 0, job.done
    shown = job.done.json
    assert shown["outcome"] == "promoted" and len(shown["rounds"]) == 2
    sha, ref = shown["candidate"]["sha"], f"refs/heads/{BRANCH.get(name, 'main')}"
    if name in OWN_BRANCH:
        ref = f"refs/heads/capataz/{shown['run_id']}"
        assert f"git merge capataz/{shown['run_id']}" in job.done.err
        assert job.after.files == job.before.files and job.after.index == job.before.index
    assert shown["promotion"]["ref"] == ref and git(job.repo, "rev-parse", ref) == sha
    assert (job.after.config, job.after.head) == (job.before.config, job.before.head)
    assert shown["candidate"]["changed_files"] == ["mul.py", "selfcheck.py"]
    changed = git(job.repo, "diff", "--name-only", f"{sha}~2", sha).split() if name != "shallow" else ["mul.py", "selfcheck.py"]
    assert changed == ["mul.py", "selfcheck.py"]
    assert not odd_projects.marker(job.repo).exists()
    subprocess.run(["git", "-c", "safe.directory=*", "fsck", "--no-dangling"], cwd=job.repo, env=GIT_ENV, check=True, capture_output=True)


@pytest.mark.parametrize("name", ["plain", "odd_names", "symlinks", "nested_repo", "linked_worktree", "spaces_and_signs"])
def test_the_checked_out_files_follow(jobs: SideBySide[Done], name: str) -> None:
    job = jobs[name]
    untracked = "?? scratch/" if name == "nested_repo" else ""
    assert git(job.repo, "status", "--porcelain") == untracked
    assert (job.repo / "mul.py").read_text() == "def mul(a, b):\n    return a * b\n"


# ---- one worker on odd files ---------------------------------------------------------------------


def single(cli: Cli, folder: Path, repo: Path, *answers: str, rounds: int = 1) -> Outcome:
    """``--program single`` whose worker gives these answers, one a turn; "check:" before one runs it as a statement first."""
    text = "\n".join([
        "def work(call, name):",
        "    last = call.messages[-1]['content']",
        f"    answers = [{', '.join(f'lambda last: {answer}' for answer in answers)}]",
        "    if call.turn < len(answers):",
        "        return answers[call.turn](last)",
        "    return submit(status='completed', summary=str(last)[:300], unresolved_risks=[])",
    ])
    return cli.do(repo, "--yes", "--program", "single", "--max-rounds", str(rounds), script=script(folder, text))


def show(repo: Path, path: str | bytes) -> bytes:
    spec = b"main:" + (path if isinstance(path, bytes) else path.encode())
    return subprocess.run(["git", "show", spec], cwd=repo, env=GIT_ENV, check=True, capture_output=True).stdout


def test_every_odd_name_can_be_edited(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.odd_names(tmp_path / "repo")
    command = r"find . -type f -not -path './.git/*' -not -name '*.py' -not -name '*.toml' -exec sh -c 'for f; do echo y >> \"$f\"; done' _ {} +"
    done = single(cli, tmp_path, repo, f"tool('run_command', command={command!r})".replace('\\\\"', '"'))
    assert done.code == 0, done
    for name in odd_projects.ODD_NAMES:
        assert show(repo, name) == b"x\ny\n", name
    changed = done.json["candidate"]["changed_files"]
    assert len(changed) == len(odd_projects.ODD_NAMES)
    assert sorted(type(path).__name__ for path in changed).count("dict") == 2   # those that are not UTF-8
    assert not (repo / "pwned").exists()
    diff = cli.run("diff", str(done.run_id))
    assert diff.code == 0 and diff.out.count("+y\n") == len(odd_projects.ODD_NAMES)


def test_an_edit_keeps_line_ends_and_other_bytes(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.crlf(tmp_path / "repo")
    done = single(
        cli, tmp_path, repo, "tool('edit_file', path='dos.txt', old='two', new='2')", "tool('edit_file', path='mixed.txt', old='two', new='2')"
    )
    assert done.code == 0, done
    assert (show(repo, "dos.txt"), show(repo, "mixed.txt")) == (b"one\r\n2\r\nthree\r\n", b"one\r\n2\nthree")


def test_bytes_that_are_no_utf8_stay(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.non_utf8(tmp_path / "repo")
    done = single(
        cli, tmp_path, repo, "tool('read_file', path='latin.txt')",
        "tool('edit_file', path='latin.txt', old='plain', new='other') if 'UTF-8' in last else tool('read_file', path='none')",
    )
    assert done.code == 0, done
    assert (show(repo, "latin.txt"), show(repo, "utf16.txt")) == (b"caf\xe9\nother\n", "hola\n".encode("utf-16"))


def test_binary_and_mode_changes_are_carried_and_named(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.binary(tmp_path / "repo")
    command = r"chmod -x run.sh; printf '\000\377' >> blob.bin"
    done = single(cli, tmp_path, repo, f"tool('run_command', command={command!r})")
    assert done.code == 0, done
    assert git(repo, "ls-tree", "main", "run.sh").startswith("100644")
    assert show(repo, "blob.bin") == bytes(range(256)) * 4096 + b"\0\xff"
    diff = cli.run("diff", str(done.run_id)).out
    assert "old mode 100755" in diff and "GIT binary patch" in diff


def test_links_out_of_the_tree_are_neither_read_nor_written(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.symlinks(tmp_path / "repo")
    hostname = Path("/etc/hostname").read_text()
    done = single(
        cli, tmp_path, repo, "tool('read_file', path='outside')", "tool('write_file', path='outside' if 'error' in last else 'leaked', content='x')",
        "tool('write_file', path='new.py', content=repr(last))",
    )
    assert done.code == 0, done
    assert done.json["candidate"]["changed_files"] == ["new.py"]
    assert "error" in show(repo, "new.py").decode()
    assert hostname.strip() not in cli.run("diff", str(done.run_id)).out
    assert Path("/etc/hostname").read_text() == hostname
    assert (repo / "outside").readlink() == Path("/etc/hostname") and (repo / "dangling").readlink() == Path("nowhere")


@pytest.mark.parametrize("command", ["rm -rf vendor/inner", "mkdir -p vendor/inner && cd vendor/inner && git init -q . && echo x > x"])
def test_a_submodule_keeps_its_commit(cli: Cli, tmp_path: Path, command: str) -> None:
    repo = odd_projects.submodule(tmp_path / "repo")
    before = Source.of(repo)
    done = single(cli, tmp_path, repo, f"tool('run_command', command={command!r})")
    assert done.code == 1, done
    assert done.json["reason"]["code"] in ("embedded_repository", "no_changes", "scope_violation")
    assert Source.of(repo) == before


def test_a_repository_without_a_commit_is_refused(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.init(tmp_path / "repo")
    done = cli.do(repo, "--yes")
    assert done.code == 64 and done.json["error"]["code"] == "repository_unusable", done
    assert "commit" in done.err and len(done.err.splitlines()) == 1
    assert leftovers(cli.home) == []


@pytest.mark.sweep
def test_a_large_repository(cli: Cli, tmp_path: Path) -> None:
    repo = odd_projects.many_files(tmp_path / "repo")
    done = cli.do(repo, "--yes")
    assert done.code == 0 and done.json["outcome"] == "promoted", done
