"""``apply_patch``: strict about what changes, forgiving about counts; checked against git's own diffs."""

# ruff: noqa: PTH208
# Paths are bytes here.
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_agents_files import got, put, use

from capataz.agents.tools import patches
from capataz.agents.tools.errors import ToolError

BASE = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def hunk(*lines: str, header: str = "@@ -1,3 +1,3 @@", name: str = "f") -> str:
    return f"--- a/{name}\n+++ b/{name}\n{header}\n" + "\n".join(lines) + "\n"


async def test_plain(tmp_path: Path) -> None:
    put(tmp_path / "w", b"f", BASE)
    reply = await use(tmp_path / "w", "apply_patch", patch=hunk(" one", "-two", "+TWO", " three"))
    assert not reply.failed and reply.content == "changed f"
    assert got(tmp_path / "w", b"f") == BASE.replace(b"two", b"TWO")


@pytest.mark.parametrize("header", ["@@ -1,9 +1,1 @@", "@@ -1 +1 @@", "@@ @@", "@@", "@@ def f():", "@@ -40,3 +40,3 @@ some context"])
async def test_wrong_counts_and_places(tmp_path: Path, header: str) -> None:
    put(tmp_path / "w", b"f", BASE)
    reply = await use(tmp_path / "w", "apply_patch", patch=hunk(" three", "-four", "+4", "+4b", " five", header=header))
    assert not reply.failed, reply.content
    assert got(tmp_path / "w", b"f") == BASE.replace(b"four\n", b"4\n4b\n")


async def test_all_hunks_or_none_and_each_rejected_one_is_named(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"f", BASE)
    put(root, b"g", b"a\n")
    patch = hunk(" one", "-two", "+TWO", "@@ -5,2 +5,2 @@", " five", "-SIX", "+6") + hunk("-b", "+c", name="g", header="@@ -1 +1 @@")
    reply = await use(root, "apply_patch", patch=patch)
    assert reply.failed and "hunk 2 of f" in reply.content and "hunk 1 of g" in reply.content and "nothing was changed" in reply.content
    assert "wanted 'SIX', the file has 'six'" in reply.content
    assert got(root, b"f") == BASE and got(root, b"g") == b"a\n"


async def test_create_delete_rename_mode(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"old", b"x\ny\n")
    put(root, b"gone", b"bye\n")
    patch = (
        "diff --git a/new b/new\nnew file mode 100755\nindex 000..111\n--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+#!/bin/sh\n+true\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
        "diff --git a/old b/moved\nsimilarity index 90%\nrename from old\nrename to moved\n--- a/old\n+++ b/moved\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 000..e69\n"
    )
    reply = await use(root, "apply_patch", patch=patch)
    assert not reply.failed, reply.content
    assert sorted(os.listdir(root)) == ["empty", "moved", "new"]
    assert got(root, b"moved") == b"x\nz\n" and got(root, b"new") == b"#!/bin/sh\ntrue\n"
    assert (root / "new").stat().st_mode & 0o777 == 0o755


async def test_end_of_file_without_newline(tmp_path: Path) -> None:
    root = tmp_path / "w"
    none = "\\ No newline at end of file"
    put(root, b"f", b"a\nb")
    assert not (await use(root, "apply_patch", patch=hunk(" a", "-b", none, "+c", none))).failed
    assert got(root, b"f") == b"a\nc"
    assert not (await use(root, "apply_patch", patch=hunk(" a", "-c", "+d"))).failed
    assert got(root, b"f") == b"a\nd"          # the patch says nothing about it: kept
    assert not (await use(root, "apply_patch", patch=hunk(" a", "-d", none, "+e"))).failed
    assert got(root, b"f") == b"a\ne\n"


async def test_crlf_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"f", b"one\r\ntwo\r\nthree\r\n")
    assert not (await use(root, "apply_patch", patch=hunk(" one", "-two", "+2", "+2b", " three"))).failed
    assert got(root, b"f") == b"one\r\n2\r\n2b\r\nthree\r\n"


async def test_other_encodings(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"f", b"caf\xe9\ntwo\nthree\n")
    assert not (await use(root, "apply_patch", patch=hunk("-two", "+2", " three", header="@@ -2,2 +2,2 @@"))).failed
    assert got(root, b"f") == b"caf\xe9\n2\nthree\n"


async def test_odd_names(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"latin-\xe9.txt", b"x\n")
    put(root, b"a b", b"x\n")
    patch = '--- "a/latin-\\351.txt"\n+++ "b/latin-\\351.txt"\n@@ -1 +1 @@\n-x\n+y\n--- a/a b\t2026\n+++ b/a b\t2026\n@@ -1 +1 @@\n-x\n+y\n'
    assert not (await use(root, "apply_patch", patch=patch)).failed
    assert got(root, b"latin-\xe9.txt") == got(root, b"a b") == b"y\n"


async def test_scope_covers_every_file(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"f", BASE)
    patch = hunk(" one", "-two", "+TWO") + "--- /dev/null\n+++ b/other\n@@ -0,0 +1 @@\n+x\n"
    reply = await use(root, "apply_patch", patch=patch, globs=("f",))
    assert reply.refused == "path" and got(root, b"f") == BASE
    assert (await use(root, "apply_patch", patch="--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n")).refused == "path"


@pytest.mark.parametrize(
    "patch",
    ["", "hello", "*** Begin Patch\n*** Update File: f\n", "@@ -1 +1 @@\n-a\n+b\n", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n", "diff --git a/f b/f\nGIT binary patch\n",
     "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n", "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n",
     "--- a/f\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-one\n"],
)
async def test_what_is_no_patch_here(tmp_path: Path, patch: str) -> None:
    put(tmp_path / "w", b"f", BASE)
    reply = await use(tmp_path / "w", "apply_patch", patch=patch)
    assert reply.failed and reply.content.startswith("error: ") and len(reply.content) <= 2_000
    assert got(tmp_path / "w", b"f") == BASE


async def test_a_failing_write_takes_the_others_back(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"f", BASE)
    patch = hunk(" one", "-two", "+TWO") + "--- /dev/null\n+++ b/f/below\n@@ -0,0 +1 @@\n+x\n"
    assert (await use(root, "apply_patch", patch=patch)).failed
    assert got(root, b"f") == BASE


LINES = st.lists(st.sampled_from(["a", "b", "", "c d", "- x", "+ y", "@@ z", "-- q", "\\ w"]), max_size=14)


@settings(max_examples=60, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_git_diffs_apply_exactly(tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str], end_old: bool, end_new: bool) -> None:
    folder = tmp_path_factory.mktemp("g")
    before = "\n".join(old) + ("\n" if old and end_old else "")
    after = "\n".join(new) + ("\n" if new and end_new else "")
    (folder / "x").write_text(before)
    (folder / "y").write_text(after)
    diff = subprocess.run(["git", "diff", "--no-index", "--no-color", "--no-prefix", "-U2", "x", "y"], cwd=folder, capture_output=True, text=True).stdout
    if not diff or "@@" not in diff:
        return
    parsed = patches.parse(diff)
    assert len(parsed) == 1
    result, rejected = patches.apply(before, parsed[0])
    assert (result, rejected) == (after, [])


@given(st.text(alphabet="abdf-+@ \n\\/0123456789,\"", max_size=200))
def test_any_text_is_a_patch_or_a_clear_error(text: str) -> None:
    try:
        for part in patches.parse("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n" + text):
            patches.apply("a\nb\n", part)
    except ToolError:
        pass
