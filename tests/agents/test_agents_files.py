"""File tools on odd repositories: names, line endings, encodings, links, scopes."""

# ruff: noqa: PTH123, PTH118, PTH208
# Paths are bytes here.
from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from agents_kit import ports_on
from hypothesis import given
from hypothesis import strategies as st

from capataz.agents.tools.bench import Bench
from capataz.agents.tools.catalogue import catalogue
from capataz.agents.tools.errors import ToolError, error_reply
from capataz.agents.tools.paths import WriteScope, parse_path, relative, show_path
from capataz.contracts.errors import ForbiddenAccess, NotFound, UsageError
from capataz.contracts.harness import ToolReply

ODD = [
    b"with space.txt", b'quote".txt', b"new\nline.txt", b"tab\t.txt", "café-空.txt".encode(), b"-leading-dash.txt", b"latin-\xe9.txt", b"back\\slash.txt",
    b"*.glob", b"$(touch pwned).txt", b'"quoted"', b'"', b" lead and trail ", b"\x7f\x01", b"\xff\xfe",
]


async def use(root: Path, name: str, globs: tuple[str, ...] | None = None, protected: tuple[str, ...] = (), **arguments: Any) -> ToolReply:
    bench = Bench(ports_on(root), WriteScope(globs, protected), "a", 60)
    try:
        return await catalogue()[name].call(bench, arguments)
    except ToolError as error:
        return error_reply(str(error), refused=error.refused)
    except ForbiddenAccess as error:
        return error_reply(str(error), refused="path")
    except (NotFound, UsageError) as error:
        return error_reply(str(error))


def put(root: Path, name: bytes, data: bytes) -> None:
    root.mkdir(exist_ok=True)
    with open(os.path.join(os.fsencode(root), name), "wb") as stream:
        stream.write(data)


def got(root: Path, name: bytes) -> bytes:
    with open(os.path.join(os.fsencode(root), name), "rb") as stream:
        return stream.read()


async def test_odd_names_as_listed_can_be_read_edited_and_written(tmp_path: Path) -> None:
    root = tmp_path / "w"
    for name in ODD:
        put(root, name, b"x\n")
    listed = (await use(root, "list_directory")).content.split("\n")
    assert sorted(parse_path(line) for line in listed) == sorted(ODD)
    for line in listed:
        name = parse_path(line)
        assert (await use(root, "read_file", path=line)).content == "     1\tx"
        assert not (await use(root, "edit_file", path=line, old="x", new="y")).failed
        assert got(root, name) == b"y\n"
        assert not (await use(root, "write_file", path=line, content="z")).failed
        assert got(root, name) == b"z"
    assert sorted(os.listdir(os.fsencode(root))) == sorted(ODD)


@pytest.mark.parametrize("form", [{"b64": base64.b64encode(b"latin-\xe9.txt").decode()}, "latin-\udce9.txt", '"latin-\\351.txt"', './"x'])
async def test_forms_of_a_path(tmp_path: Path, form: Any) -> None:
    name = b'"x' if form == './"x' else b"latin-\xe9.txt"
    put(tmp_path / "w", name, b"x\n")
    assert (await use(tmp_path / "w", "read_file", path=form)).content == "     1\tx"


@given(st.binary(min_size=1).filter(lambda b: b"\0" not in b))
def test_paths_round_trip(path: bytes) -> None:
    shown = show_path(path)
    assert parse_path(shown) == path
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize(("path", "refused"), [("/etc/passwd", "path"), ("a/../../x", "path"), ("..", "path"), ("/workspace/a", None), ('"\\q"', None), (7, None), ("a\0b", None), ({"b64": "!"}, None)])
def test_bad_paths(path: Any, refused: str | None) -> None:
    with pytest.raises(ToolError) as raised:
        relative(path)
    assert raised.value.refused == refused


async def test_edit_of_one_line_changes_that_line_only(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"dos.txt", b"one\r\ntwo\r\nthree\r\n")
    put(root, b"mixed.txt", b"one\r\ntwo\nthree")
    for old, new, expected in [
        ("two", "TWO", b"one\r\nTWO\r\nthree\r\n"),
        ("one\nTWO\n", "1\n2\n", b"1\r\n2\r\nthree\r\n"),
        ("2", "2\n2b", b"1\r\n2\r\n2b\r\nthree\r\n"),
    ]:
        assert not (await use(root, "edit_file", path="dos.txt", old=old, new=new)).failed
        assert got(root, b"dos.txt") == expected
    for old, new, expected in [
        ("one\ntwo\n", "1\n2\n", b"1\r\n2\nthree"),
        ("three", "3", b"1\r\n2\n3"),
        ("1", "1\n1b", b"1\r\n1b\r\n2\n3"),
        ("3", "3\n4", b"1\r\n1b\r\n2\n3\n4"),
    ]:
        assert not (await use(root, "edit_file", path="mixed.txt", old=old, new=new)).failed
        assert got(root, b"mixed.txt") == expected
    shown = (await use(root, "read_file", path="mixed.txt")).content
    assert "mixed line endings" in shown and "no newline at the end" in shown and "\r" not in shown


async def test_encodings(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"latin.txt", b"caf\xe9\nplain\n")
    put(root, b"utf16.txt", "hola\nadiós\n".encode("utf-16"))
    put(root, b"bom.txt", b"\xef\xbb\xbfone\ntwo\n")
    shown = (await use(root, "read_file", path="latin.txt")).content
    assert "not UTF-8" in shown and "caf\ufffd" in shown
    assert not (await use(root, "edit_file", path="latin.txt", old="plain", new="plain é")).failed
    assert got(root, b"latin.txt") == b"caf\xe9\nplain \xe9\n"
    assert not (await use(root, "edit_file", path="latin.txt", old="café", new="té")).failed
    assert got(root, b"latin.txt") == b"t\xe9\nplain \xe9\n"
    assert "\ufffd" in (await use(root, "edit_file", path="latin.txt", old="t\ufffd", new="x")).content
    assert (await use(root, "edit_file", path="latin.txt", old="plain", new="空")).failed is False
    assert got(root, b"latin.txt").startswith(b"t\xe9\n")
    shown = (await use(root, "read_file", path="utf16.txt")).content
    assert "not UTF-8" in shown and "adiós" in shown
    assert not (await use(root, "edit_file", path="utf16.txt", old="hola", new="ciao")).failed
    assert got(root, b"utf16.txt") == "ciao\nadiós\n".encode("utf-16")
    assert not (await use(root, "edit_file", path="bom.txt", old="one", new="uno")).failed
    assert got(root, b"bom.txt") == b"\xef\xbb\xbfuno\ntwo\n"
    assert "byte order mark" in (await use(root, "read_file", path="bom.txt")).content


async def test_edit_says_how_many_and_where(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"a", b"x = 1\ny\nx = 1\n  z = 2\n")
    many = await use(root, "edit_file", path="a", old="x = 1", new="x")
    assert many.failed and "2 times" in many.content and "1, 3" in many.content
    assert "line 4 only white space differs" in (await use(root, "edit_file", path="a", old="    z = 2", new="x")).content
    assert "0 times" in (await use(root, "edit_file", path="a", old="nowhere", new="x")).content
    assert (await use(root, "edit_file", path="a", old="", new="x")).failed
    assert (await use(root, "edit_file", path="a", old="y", new="y")).failed
    assert got(root, b"a") == b"x = 1\ny\nx = 1\n  z = 2\n"
    assert not (await use(root, "edit_file", path="a", old="x = 1", new="w", count=2)).failed
    assert not (await use(root, "edit_file", path="a", old="w", new="v", count=0)).failed
    assert got(root, b"a") == b"v\ny\nv\n  z = 2\n"


async def test_reading(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"big", b"".join(b"line %d\n" % i for i in range(1, 5001)))
    put(root, b"blob.bin", bytes(range(256)) * 4096)
    put(root, b"empty", b"")
    put(root, b"long", b"x" * 10_000)
    put(root, b"feed", b"a\x0cb\x1cc\n")
    part = (await use(root, "read_file", path="big", offset=10, limit=2)).content
    assert part == "[lines 10 to 11 of 5000; go on with offset=12]\n    10\tline 10\n    11\tline 11"
    assert "binary data, 1048576 bytes" in (await use(root, "read_file", path="blob.bin")).content
    assert (await use(root, "read_file", path="empty")).content == "(empty file)"
    assert len((await use(root, "read_file", path="long")).content) < 2_200
    assert (await use(root, "read_file", path="feed")).content.count("\n") == 0
    assert "past the end" in (await use(root, "read_file", path="big", offset=6000)).content
    assert len((await use(root, "read_file", path="big", limit=5000)).content) < 70_000
    assert "folder" in (await use(root, "read_file", path=".")).content
    assert "does not exist" in (await use(root, "read_file", path="none")).content


async def test_links(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"calc.py", b"x\n")
    (root / "inside").symlink_to("calc.py")
    (root / "outside").symlink_to("/etc/hostname")
    (root / "dir").symlink_to("/etc")
    assert not (await use(root, "read_file", path="inside")).failed
    for name, arguments in [("read_file", {"path": "outside"}), ("write_file", {"path": "outside", "content": ""}), ("write_file", {"path": "dir/x", "content": ""}), ("list_directory", {"path": "dir"})]:
        assert (await use(root, name, **arguments)).refused == "path", name
    assert (await use(root, "list_directory")).content.split("\n")[2] == "inside  (link)"


async def test_write_scope(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"capataz.toml", b"x\n")
    scope: Any = {"globs": ("src/**", "capataz.toml"), "protected": ("capataz.toml", ".github/**")}
    assert not (await use(root, "write_file", path="src/a/b.py", content="x", **scope)).failed
    for path in ("other.py", "capataz.toml", ".git/config", ".GIT/hooks/x", "src", "src/../other.py"):
        reply = await use(root, "write_file", path=path, content="y", **scope)
        assert reply.failed and reply.refused == "path", path
    reply = await use(root, "edit_file", path="capataz.toml", old="x", new="y", **scope)
    assert "protected" in reply.content and got(root, b"capataz.toml") == b"x\n"
    assert "outside the write scope" in (await use(root, "write_file", globs=(), path="a", content="")).content
    assert (await use(root, "write_file", path=".", content="")).failed


async def test_write_keeps_the_mode_and_makes_parents(tmp_path: Path) -> None:
    root = tmp_path / "w"
    put(root, b"run.sh", b"old")
    (root / "run.sh").chmod(0o755)
    await use(root, "write_file", path="run.sh", content="#!/bin/sh\n")
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755
    await use(root, "write_file", path="x/y/z", content="é")
    assert got(root, b"x/y/z") == "é".encode()
    assert (await use(root, "write_file", path="a", content="\ud800")).failed
    assert (await use(root, "write_file", path="run.sh/below", content="")).failed


async def test_listing(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "a/b/c").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("")
    for i in range(1_100):
        (root / f"a/b/c/{i:04}").write_text("")
    assert (await use(root, "list_directory", depth=2)).content == "a/\na/b/"
    many = (await use(root, "list_directory", path="a/b/c")).content
    assert "only the first 1000" in many
    (root / "none").mkdir()
    assert (await use(root, "list_directory", path="none")).content == "(empty folder)"
    assert "does not exist" in (await use(root, "list_directory", path="nope")).content


async def test_argument_errors_are_one_line(tmp_path: Path) -> None:
    reply = await use(tmp_path / "w", "read_file", offset="x", more=1)
    assert reply.content == "error: read_file: path is missing; offset: Input should be a valid integer, unable to parse string as an integer; more is not an argument of this tool"
    assert (await use(tmp_path / "w", "read_file", path="none", limit="5")).content.startswith("error: none does not exist")
