from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from evidence_rig import git

from capataz.contracts.errors import EvidenceError
from capataz.contracts.records import WorkerOutput, WorkItem

ITEM = WorkItem(id="main", objective="o", write_globs=["src/**", "calc.py", "links/*", "vendor/**", "run.sh"])


def put(name: str, data: bytes = b"x\n"):
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return change


def link(name: str, target: str):
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return change


def embed(folder: Path) -> None:
    (folder / "src/inner").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=folder / "src/inner", check=True)
    (folder / "src/inner/a.txt").write_text("a")


def fifo(folder: Path) -> None:
    (folder / "src").mkdir()
    os.mkfifo(folder / "src/pipe")


def unix_socket(folder: Path) -> None:
    (folder / "src").mkdir()
    with socket.socket(socket.AF_UNIX) as s:
        here = os.open(folder / "src", os.O_RDONLY)
        s.bind(f"/proc/self/fd/{here}/s")
        os.close(here)


def file_to_folder(folder: Path) -> None:
    (folder / "selfcheck.py").unlink()
    put("selfcheck.py/x")(folder)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("scope_violation", put("other.py")),
        ("scope_violation", lambda f: (f / "selfcheck.py").unlink()),
        ("scope_violation", lambda f: (f / "selfcheck.py").chmod(0o755)),
        ("scope_violation", lambda f: (f / "calc.py").rename(f / "moved.py")),
        ("scope_violation", file_to_folder),
        ("scope_violation", put("capataz.toml")),
        ("scope_violation", put(".github/workflows/x.yml")),
        ("scope_violation", put(".gitignore", b"")),
        ("link_escape", link("links/a", "/etc/passwd")),
        ("link_escape", link("links/a", "../../x")),
        ("link_escape", link("links/a", "../.git/config")),
        ("embedded_repository", embed),
        ("reserved_path", put("src/.GIT/config")),
        ("reserved_path", put("src/.g\u200cit")),
        ("special_file", fifo),
        ("special_file", unix_socket),
        ("file_too_large", put("src/big.bin", b"\0" * (1 << 20))),
    ],
)
async def test_what_no_worker_may_leave_is_refused_by_its_own_error(build, code: str, change):
    rig = build({**_files(), "capataz.toml": '[suites.unit]\ncommand = "true"\n[limits]\nmax_file = "1000KB"\n'})
    with pytest.raises(EvidenceError) as error:
        await rig.freeze(await rig.job(), ITEM, change)
    assert error.value.code == code and error.value.details["task"] == "main"
    assert error.value.details["paths"]


def _files():
    return {"calc.py": "def add(a, b):\n    return a + b\n", "selfcheck.py": "x = 1\n", ".gitignore": "*.log\n", "run.sh": "#!/bin/sh\n"}


async def test_work_in_scope_is_kept_and_ignored_new_files_are_left_out(build):
    rig = build({**_files(), "capataz.toml": '[suites.unit]\ncommand = "true"\n', "kept.log": "tracked\n"})

    def change(folder: Path) -> None:
        for name in ["src/new.py", "src/debug.log", "__pycache__/calc.pyc", ".pytest_cache/x", "node_modules/m/index.js"]:
            put(name)(folder)
        link("node_modules/.bin", "/usr/bin")(folder)
        (folder / "node_modules/.git").mkdir()
        (folder / "run.sh").chmod(0o755)
        link("links/in", "../calc.py")(folder)
        put("calc.py", b"new\n")(folder)

    record = await rig.freeze(await rig.job(), ITEM, change)
    assert record.changed_files == [b"calc.py", b"links/in", b"run.sh", b"src/new.py"]
    run = await rig.run()
    paths = {e.path: e.mode for e in await run.entries(record.tree)}
    assert paths[b"run.sh"] == "100755" and b"src/debug.log" not in paths and not any(p.startswith(b"node_modules") for p in paths)


async def test_a_worker_cannot_hide_a_file_by_its_own_gitignore(build):
    rig = build({**_files(), "capataz.toml": '[suites.unit]\ncommand = "true"\n'})
    item = ITEM.model_copy(update={"write_globs": [".gitignore"]})

    def change(folder: Path) -> None:
        put(".gitignore", b"*\n")(folder)
        put("stolen.py")(folder)

    with pytest.raises(EvidenceError) as error:
        await rig.freeze(await rig.job(), item, change)
    assert error.value.code == "scope_violation" and error.value.details["paths"] == ["stolen.py"]


async def test_the_root_git_folder_is_no_part_of_the_tree(build):
    rig = build(None)

    def change(folder: Path) -> None:
        (folder / ".git/hooks").mkdir(parents=True, exist_ok=True)
        (folder / ".git/hooks/post-checkout").write_text("#!/bin/sh\ntouch /tmp/pwned\n")
        put("calc.py", b"# new\n")(folder)

    record = await rig.freeze(await rig.job(), ITEM, change)
    assert record.changed_files == [b"calc.py"]


async def test_a_submodule_stays_at_its_commit(build, tmp_path: Path):
    rig = build(None, overlay=True)        # what is written lands in the upper layer, as from inside a sandbox
    git(rig.repo, "update-index", "--add", "--cacheinfo", f"160000,{git(rig.repo, 'rev-parse', 'HEAD')},vendor/inner")
    git(rig.repo, "commit", "-q", "-m", "submodule")
    job = await rig.job(base="HEAD")
    assert (await rig.freeze(job, ITEM, put("calc.py", b"# new\n"))).changed_files == [b"calc.py"]

    def occupy(folder: Path) -> None:
        (folder / "vendor/inner").mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q"], cwd=folder / "vendor/inner", check=True)

    with pytest.raises(EvidenceError) as error:
        await rig.freeze(job, ITEM, occupy, round=1)
    assert error.value.code == "embedded_repository"


async def test_a_read_only_task_changes_nothing(rig):
    job = await rig.job()
    item = WorkItem(id="look", objective="o", read_only=True)
    assert (await rig.freeze(job, item, put("__pycache__/x.pyc"))).changed_files == []
    with pytest.raises(EvidenceError) as error:
        await rig.freeze(job, item, put("notes.md"), round=1)
    assert error.value.code == "scope_violation"


async def test_a_blocked_worker_is_incomplete_and_a_frozen_one_freezes_again_the_same(rig):
    job = await rig.job()
    ref, tree = await rig.work(job, ITEM, put("calc.py", b"# new\n"))
    with pytest.raises(EvidenceError) as error:
        await rig.service.freeze(rig.context(), job, ref, ITEM, WorkerOutput(status="blocked", summary="no key"), round=0, end_tree=tree)
    assert error.value.code == "worker_incomplete" and "no key" in str(error.value)
    done = WorkerOutput(status="completed", summary="s")
    first = await rig.service.freeze(rig.context(), job, ref, ITEM, done, round=0, end_tree=tree)
    assert first == await rig.service.freeze(rig.context(), job, ref, ITEM, done, round=0, end_tree=tree)
    untouched = await rig.service.freeze(rig.context(), job, ref, ITEM, done, round=0, end_tree=None)
    assert untouched.changed_files == [] and untouched.tree == ref.tree
