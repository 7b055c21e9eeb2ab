from __future__ import annotations

import pytest

from capataz.contracts.errors import UsageError
from capataz.evidence.links import escapes, new_escapes
from capataz.evidence.refs import branch_problem, branch_ref
from capataz.evidence.reserved import reserved_paths
from capataz.evidence.scopes import show


@pytest.mark.parametrize(
    ("links", "path", "leaves"),
    [
        ({b"l": b"calc.py"}, b"l", False),
        ({b"l": b"nowhere/at/all"}, b"l", False),
        ({b"a/l": b"../calc.py"}, b"a/l", False),
        ({b"a/l": b"../../x"}, b"a/l", True),
        ({b"l": b"/etc/passwd"}, b"l", True),
        ({b"l": b".."}, b"l", True),
        ({b"l": b"a/../../a"}, b"l", True),
        ({b"l": b".git/config"}, b"l", True),
        ({b"l": b"./.GIT/hooks"}, b"l", True),
        ({b"l": b"sub/deep/..", b"sub/deep": b".."}, b"l", True),
        ({b"l": b"outside", b"outside": b"/etc"}, b"l", True),
        ({b"l": b"l"}, b"l", False),
        ({b"l": b"m", b"m": b"l"}, b"l", False),
        ({b"d": b"x/y", b"l": b"d/../z"}, b"l", False),
    ],
)
def test_a_link_is_followed_as_the_kernel_would(links: dict[bytes, bytes], path: bytes, leaves: bool):
    assert escapes(links, path) is leaves


def test_an_old_link_that_leaves_stays_and_a_redirected_one_is_found():
    assert new_escapes({b"o": b"/etc/hostname"}, {b"o": b"/etc/hostname", b"i": b"calc.py"}) == []
    assert new_escapes({b"o": b"/etc/hostname"}, {b"o": b"/etc/passwd"}) == [b"o"]
    # `e` itself is unchanged: the folder that it goes through became a link.
    assert new_escapes({b"e": b"b/.."}, {b"e": b"b/..", b"b": b"."}) == [b"e"]


@pytest.mark.parametrize("name", [
    b"a/.git", b"a/.GIT/config", b".Git/x", b"a/.git./x", b"a/.git /x", b"a/git~1", b"a/.g\xe2\x80\x8cit/x", b"a/.git::$INDEX",
    "a/\uff0egit/x".encode(), "a/.\uff47it".encode(), b"a\\.git\\hooks",
])
def test_names_that_some_file_system_takes_for_git_are_reserved(name: bytes):
    assert reserved_paths([name, b"fine.py"]) == [name]


def test_other_names_are_free():
    assert reserved_paths([b".gitignore", b"a/.gitmodules", b"git", b"x.git", b"a/.github/x", "caf\u00e9".encode(), b"latin-\xe9"]) == []


def test_paths_are_shown_on_one_line():
    assert show(b"new\nline\xe9\x1b") == "new\\nline\\xe9\\x1b"


@pytest.mark.parametrize("name", ["", "a..b", "a b", "-x", "a/.x", "x.lock", "a//b", "x~1", "a\x07", "HEAD", "@", "x.", "refs/tags/v1", "a@{1}"])
def test_what_git_would_not_take_is_no_target(name: str):
    with pytest.raises(UsageError, match="--target"):
        branch_ref(name)


def test_branch_names_are_taken_in_both_forms():
    assert branch_ref("feature/x") == branch_ref("refs/heads/feature/x") == "refs/heads/feature/x"
    assert branch_problem("capataz/r0") is None and branch_problem("caf\u00e9") is None
