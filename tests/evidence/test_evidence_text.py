from __future__ import annotations

from dataclasses import replace

from capataz.contracts.workspace import Change
from capataz.evidence.manifest import diff_text, split_diff
from capataz.evidence.testids import TestIds, lost_tests, parse_log, parse_reports
from capataz.evidence.text import readable


def change(path: bytes, status: str = "M", old: str = "100644", new: str = "100644") -> Change:
    return Change(status=status, path=path, old_mode=old, new_mode=new, old_sha="1", new_sha="2")  # type: ignore[arg-type]


def test_hostile_bytes_are_shown_and_counted():
    text, escaped = readable(b"caf\xe9 \x1b[31m\x00 a\r\nb\rc \xe2\x80\xae\xc3\xa9")
    assert text == "caf\\xe9 \\x1b[31m\\x00 a\r\nb\\x0dc \\u202e\u00e9" and escaped == 5
    assert readable("plain caf\u00e9\n\t".encode()) == ("plain caf\u00e9\n\t", 0)


def patch(name: str, lines: int) -> bytes:
    return f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n".encode() + b"+diff --git a/x b/x\n" * lines


def test_a_patch_is_split_at_headers_only():
    parts = split_diff(patch("a", 3) + patch("b", 2))
    assert parts == [patch("a", 3), patch("b", 2)]
    assert split_diff(b"") == []


def test_a_large_diff_keeps_small_files_whole_and_names_every_cut():
    diff = patch("small", 2) + patch("large", 5000) + patch("other", 1)
    changes = [change(b"large"), change(b"small"), change(b"other"), change(b"b.bin", "D", new="000000"), change(b"run\n.sh", new="100755")]
    text = diff_text(changes, diff, "blob:0", budget=4000)
    assert patch("small", 2).decode() in text and patch("other", 1).decode() in text
    assert "bytes of this file's patch are left out here; the whole diff is blob:0" in text and len(text) < 6000
    assert "b.bin: deleted" in text and "run\\n.sh (bytes b'run\\n.sh'): modified, mode 100644 to 100755" in text
    assert "5 files changed" in text


def test_what_a_budget_holds_is_whole():
    diff = patch("a", 3) + patch("b", 2)
    assert diff_text([change(b"a")], diff, "blob:0").endswith(diff.decode())


def line(test: str, outcome: str, runner: str = "pytest") -> bytes:
    return f'{{"r": "{runner}", "i": "{test}", "f": "t.py", "o": "{outcome}"}}\n'.encode()


def test_reports_are_read_whatever_else_is_there():
    found = parse_reports(line("a", "collected") + b"junk\n[1]\n{}\n" + line("a", "passed") + line("b", "collected") + line("c", "odd"))
    assert found.outcomes == {"a": "passed", "b": "collected"} and found.listed and found.files == {"a": "t.py", "b": "t.py"}
    assert not parse_reports(b"").listed


def test_hostile_ids_cannot_break_what_shows_them():
    found = parse_reports(rb'{"r": "x", "i": "a\ud800\u0000\u001b[1m\n", "f": "\ud800.py", "o": "passed"}' + b"\n" + b"[" * 100_000)
    assert list(found.outcomes) == ["a?\\x00\\x1b[1m\\n"] and list(found.files.values()) == ["?.py"]


def ids(**outcomes: str) -> TestIds:
    return TestIds(("pytest",), dict(outcomes))


def test_each_way_of_guarding_less_is_a_finding():
    base = replace(ids(a="passed", b="failed", c="skipped", d="passed", e="xfailed"), content=True)
    assert lost_tests(base, ids(**base.outcomes, new="passed"), completed=True) == []
    assert "not collected any more: b, d" in lost_tests(base, ids(a="passed", c="skipped", e="xfailed"), completed=True)[0]
    assert "skipped or expected to fail: a, b, d" in lost_tests(
        base, ids(a="skipped", b="xfailed", c="skipped", d="xpassed", e="xfailed"), completed=True)[0]
    idle = ids(a="collected", b="failed", c="skipped", d="passed", e="xfailed")
    assert "collected but not run: a" in lost_tests(base, idle, completed=True)[0]
    assert lost_tests(base, idle, completed=False) == []
    assert "5 tests" in lost_tests(base, TestIds(), completed=True)[0]
    failed = ids(**base.outcomes | {"a": "failed"})
    assert "failed and the suite ended with exit code 0 all the same: a" in lost_tests(base, failed, completed=True)[0]
    assert lost_tests(base, failed, completed=False) == []
    assert "all the same: b" in lost_tests(replace(base, content=False), base, completed=True)[0]


def test_cargo_and_go_tell_their_ids_in_the_log():
    cargo = b"     Running unittests src/lib.rs (target/debug/deps/x-0a1b)\n\nrunning 2 tests\ntest a::one ... ok\ntest two ... ignored\n"
    assert parse_log("cargo test", cargo).outcomes == {"unittests src/lib.rs a::one": "passed", "unittests src/lib.rs two": "skipped"}
    go = b"=== RUN   TestA\n--- PASS: TestA (0.00s)\n--- SKIP: TestB (0.00s)\nPASS\nok  \texample.com/m\t0.002s\n"
    assert parse_log("go test ./...", go).outcomes == {"example.com/m TestA": "passed", "example.com/m TestB": "skipped"}
    assert not parse_log("make test", go).listed
