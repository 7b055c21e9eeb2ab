from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capataz.contracts.errors import UsageError
from capataz.contracts.globs import compile_glob, matches_any, overlap

CASES = [
    ("a.py", b"a.py", True),
    ("a.py", b"x/a.py", False),
    ("*.py", b"a.py", True),
    ("*.py", b"x/a.py", False),
    ("**/*.py", b"a.py", True),
    ("**/*.py", b"x/y/a.py", True),
    ("src/**", b"src/a/b", True),
    ("src/**", b"src", False),
    ("src/", b"src/a/b", True),
    ("src/**/t.py", b"src/t.py", True),
    ("src/**/t.py", b"src/a/b/t.py", True),
    ("src/**/t.py", b"src/at.py", False),
    ("**", b"any/thing", True),
    ("?.py", b"a.py", True),
    ("?.py", b"/.py", False),
    ("[ab].py", b"a.py", True),
    ("[!ab].py", b"a.py", False),
    ("[!ab].py", b"c.py", True),
    ("a[!b]c", b"a/c", False),
    ("[]x].py", b"].py", True),
    ("pages/[id].tsx", b"pages/[id].tsx", True),
    ("A.py", b"a.py", False),
    ("./a.py", b"a.py", True),
    ("/a.py", b"a.py", True),
    ("latin-\udce9.txt", b"latin-\xe9.txt", True),
    ("back\\slash.txt", b"back\\slash.txt", True),
    ("{a,b}.py", b"a.py", False),
    ("{a,b}.py", b"{a,b}.py", True),
    ("!a.py", b"!a.py", True),
    ("a**b", b"a/x/b", True),
    ("[*].glob", b"*.glob", True),
    ("[*].glob", b"x.glob", False),
    ("*", b"new\nline.txt", True),
]


@pytest.mark.parametrize(("glob", "path", "expected"), CASES)
def test_match(glob: str, path: bytes, expected: bool) -> None:
    assert compile_glob(glob).match(path) is expected


@pytest.mark.parametrize("glob", ["", "a\0b", "../x", "a//b", "a/./b", "."])
def test_refused(glob: str) -> None:
    with pytest.raises(UsageError):
        compile_glob(glob)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("a.py", "a.py", b"a.py"),
        ("a.py", "b.py", None),
        ("src/**", "**/x.py", b"src/x.py"),
        ("src/**", "tests/**", None),
        ("*.py", "test_*", b"test_.py"),
        ("a/*/b", "a/**", b"a/a/b"),
        ("[a-c]x", "[c-e]x", b"cx"),
        ("[ab]x", "[cd]x", None),
        ("a", "a/**", None),
    ],
)
def test_overlap(a: str, b: str, expected: bytes | None) -> None:
    assert overlap(a, b) == expected
    assert (overlap(b, a) is None) is (expected is None)


PIECE = st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "[!a]", "/"])
GLOB = st.lists(PIECE, min_size=1, max_size=7).map("".join)
PATH = st.lists(st.sampled_from(["a", "b", "ab", "c", "aa"]), min_size=1, max_size=4).map("/".join)


def valid(text: str) -> bool:
    try:
        compile_glob(text)
    except UsageError:
        return False
    return True


def oracle(text: str) -> re.Pattern[str]:
    """The same rules as a regular expression (exponential in the worst case: for tests only)."""
    text = text.lstrip("/")
    text += "**" if text.endswith("/") else ""
    out = ""
    for token in re.findall(r"(?:(?:^|(?<=/))\*\*+/)|\*\*+|\*|\?|\[!?[ab]\]|.", text):
        if token.endswith("*/") and token.startswith("**"):
            out += "(?:[^/].*/)?"
        elif token.startswith("**"):
            whole = out == "" or out.endswith("/") or out.endswith("/)?")
            out += ".+" if whole else ".*"
        else:
            out += {"*": "[^/]*", "?": "[^/]", "[!a]": "[^a/]"}.get(token, token)
    return re.compile(out + r"\Z", re.DOTALL)


@settings(max_examples=300, deadline=None)
@given(GLOB, PATH)
def test_matches_what_the_rules_say(glob: str, path: str) -> None:
    if not valid(glob) or (re.search(r"\*\*+[^/]|\*\*$", glob.lstrip("/")) and not re.search(r"(^|/)\*\*+$", glob.lstrip("/"))):
        return
    expected = bool(oracle(glob).match(path)) or path == glob
    assert compile_glob(glob).match(path.encode()) is expected


@settings(max_examples=300, deadline=None)
@given(GLOB, GLOB, PATH)
def test_overlap_agrees_with_matching(a: str, b: str, path: str) -> None:
    if not (valid(a) and valid(b)):
        return
    witness = overlap(a, b)
    if witness is not None:
        assert compile_glob(a).match(witness) and compile_glob(b).match(witness)
        assert all(witness.split(b"/"))
    elif compile_glob(a).match(path.encode()):
        assert not compile_glob(b).match(path.encode())


def test_hostile_pattern_is_linear() -> None:
    began = time.perf_counter()
    assert not compile_glob("*a" * 60 + "*b").match(b"a" * 4000)
    assert not matches_any(["**/*a*" * 12 + "x"], b"a/" * 1000 + b"a")
    assert time.perf_counter() - began < 2
