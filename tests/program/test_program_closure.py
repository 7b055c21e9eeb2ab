"""Programs are found and pinned without running them, and run from what was pinned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from capataz.contracts.errors import CapatazError, NotFound, ProgramLoadError
from capataz.vm.closure import Source, find, list_programs
from capataz.vm.rehearsal import outcome, run_local
from capataz.vm.zygote import Zygote, describe

PROGRAM = "from capataz import program\n\n@program\nasync def main() -> int:\n    return {}\n"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        place = name.replace("____init__", "/@").replace("__", "/").replace("@", "__init__")
        path = root / f"{place}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def result(zygote: Zygote, source: Source, ref: str | None = None, input: Any = None) -> Any:
    frame, _ = await run_local(zygote, ref or source.ref, source.files, input, answer=lambda r: None)
    return outcome(frame)


async def test_a_file_with_siblings_is_pinned(zygote: Zygote, tmp_path: Path) -> None:
    write(
        tmp_path,
        audit="from helpers import deep\nimport lib.one as one\nfrom capataz import program\n@program\nasync def main() -> int:\n"
        "    import late\n    return deep.N + one.N + late.N\n",
        helpers__deep="from . import near\nN = near.N\n",
        helpers__near="N = 1\n",
        lib____init__="",
        lib__one="from .two import N\n",
        lib__two="N = 10\n",
        lib__unused="raise SystemExit\n",
        late="N = 100\n",
    )
    source = find("audit.py:main", cwd=tmp_path)
    assert source.ref == "audit:main"
    assert list(source.files) == [
        "@entry", "audit.py", "helpers/deep.py", "helpers/near.py", "late.py", "lib/__init__.py", "lib/one.py", "lib/two.py",
    ]  # fmt: skip
    assert find(f"{tmp_path}/audit.py", cwd=Path("/")).digest == source.digest
    for name in ("audit", "late", "helpers/near", "lib/two"):
        (tmp_path / f"{name}.py").unlink()
    assert await result(zygote, source) == 111
    assert await result(zygote, source, ref="audit.py:main") == 111  # as the person wrote it
    with pytest.raises(NotFound, match=r"audit\.py: no such program file"):
        find("audit.py:main", cwd=tmp_path)


async def test_names_that_are_taken(zygote: Zygote, tmp_path: Path) -> None:
    """A program may be called like a module of the library, or like no module at all."""
    for number, name in enumerate(["json", "test", "wave", "pydantic", "capataz", "asyncio", "deep-audit", "3d", "class", "año", "a b"]):
        (tmp_path / f"{name}.py").write_text("import json, asyncio, wave\njson.loads, wave.open\n" + PROGRAM.format(number))
        source = find(f"{name}.py", cwd=tmp_path)
        assert await result(zygote, source) == number, name
        assert set(source.files) == {"@entry", f"{name}.py"}


async def test_messages_name_the_file(zygote: Zygote, tmp_path: Path) -> None:
    for name in ("deep-audit", "json", "audit"):
        write(tmp_path, **{name: PROGRAM.format("1 / 0")})
        with pytest.raises(CapatazError, match=rf"^{name}\.py:5: ZeroDivisionError"):
            await result(zygote, find(f"{name}.py", cwd=tmp_path))


async def test_a_sibling_with_the_name_spelled_out(zygote: Zygote, tmp_path: Path) -> None:
    write(tmp_path, **{"a-b": "import a_b\n" + PROGRAM.format("a_b.N"), "a_b": "N = 4\n"})
    assert await result(zygote, find("a-b.py", cwd=tmp_path)) == 4


async def test_by_import_and_entry_point(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, pkg____init__="raise SystemExit('not run')\n", pkg__sub____init__="", pkg__sub__mod="from pkg.other import N\n" + PROGRAM.format("N"), pkg__other="N = 5\n")
    (tmp_path / "pkg/__init__.py").write_text("")
    source = find("pkg.sub.mod:main", cwd=tmp_path)
    assert list(source.files) == ["@entry", "pkg/__init__.py", "pkg/other.py", "pkg/sub/__init__.py", "pkg/sub/mod.py"]
    assert await result(zygote, source) == 5
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[capataz.programs]\nnightly = pkg.sub.mod:main\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("nightly", cwd=Path("/")).ref == "pkg.sub.mod:main"
    assert list_programs()["nightly"] == "pkg.sub.mod:main"


async def test_installed_program_pins_its_own_module(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is installed beside the interpreter only the program's own module belongs to the closure."""
    site = tmp_path / "site-packages"
    write(site, inst____init__="", inst__flow="from inst import other\n" + PROGRAM.format("other.N"), inst__other="N = 3\n")
    monkeypatch.syspath_prepend(str(site))
    source = find("inst.flow:main", cwd=Path("/"))
    assert list(source.files) == ["@entry", "inst/flow.py"]
    frame, _ = await run_local(zygote, source.ref, source.files, answer=lambda r: None)
    with pytest.raises(ProgramLoadError, match=r"inst"):  # the zygote has no such package; a real one is installed for both
        outcome(frame)


async def test_bundled_programs(zygote: Zygote) -> None:
    assert {"single", "ultracode"} <= set(list_programs())
    source = find("ultracode")
    assert source.ref == "capataz.programs.ultracode:ultracode"
    assert "capataz/programs/prompts/planner.md" in source.files
    assert all(name == "@entry" or name.startswith("capataz/programs/") for name in source.files)
    described = await describe("ultracode", source.files, zygote)
    assert described["ref"] == source.ref and described["doc"] and described["input"]["title"] == "CodingJob"


async def test_bundled_prompts_come_from_the_closure(zygote: Zygote) -> None:
    files = dict(find("ultracode").files)
    files["capataz/programs/prompts/planner.md"] = "pinned text"
    files["probe.py"] = (
        "from capataz import program\nfrom capataz.programs.prompting import bundled\nimport pkgutil\n"
        "@program\nasync def main() -> list:\n"
        "    data = pkgutil.get_data('capataz.programs', 'prompts/planner.md')\n"
        "    return [bundled()['planner'], data.decode()]\n"
    )
    frame, _ = await run_local(zygote, "probe:main", files, answer=lambda r: None)
    assert outcome(frame) == ["pinned text", "pinned text"]


async def test_describe(zygote: Zygote, tmp_path: Path) -> None:
    write(
        tmp_path,
        p="from capataz import program\nfrom dataclasses import dataclass\n@dataclass\nclass In:\n    n: int = 1\n"
        '@program\nasync def main(input: In) -> list[str]:\n    """Counts.\n\n    At length.\n    """\n    return []\n',
    )
    source = find("p.py", cwd=tmp_path)
    described = await describe(source.ref, source.files, zygote)
    assert described["doc"] == "Counts.\n\nAt length."
    assert described["input"]["properties"]["n"]["type"] == "integer"
    assert described["output"] == {"items": {"type": "string"}, "type": "array"}


BAD: dict[str, tuple[str, str]] = {
    "syntax": ("def x(:\n", r"^p\.py:1: "),
    "later syntax": ("import q\n" + PROGRAM.format(1), r"^q\.py:2: "),
    "null": ("\0", r"^p\.py"),
    "bytes": ("# \udcff", r"^p\.py"),
    "none": ("async def main(): pass\n", r"^p\.py: no @program"),
    "two": (PROGRAM.format(1) + "@program\nasync def other() -> int: ...\n", r"name one: p\.py:main, p\.py:other"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sources(tmp_path: Path, case: str) -> None:
    text, expected = BAD[case]
    (tmp_path / "p.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    (tmp_path / "q.py").write_text("\nx = = 1\n")
    with pytest.raises(ProgramLoadError, match=expected) as caught:
        find("p.py", cwd=tmp_path)
    assert "\n" not in str(caught.value)


LOAD: dict[str, tuple[str, str, Any]] = {
    "missing import": ("import nowhere\n" + PROGRAM.format(1), r"^p\.py:1: No module named 'nowhere'", None),
    "missing name": ("from json import nothing\n" + PROGRAM.format(1), r"^p\.py:1: cannot import name", None),
    "no such program": (PROGRAM.format(1).replace("main", "other"), r"^p\.py: no program 'main' in it; it has other", None),
    "plain function": ("from capataz import program\nasync def main(): ...\n@program\nasync def o(): ...\n", r"main is no program", None),
    "raises": ("1 / 0\n" + PROGRAM.format(1), r"^p\.py:1: ZeroDivisionError", None),
    "exits": ("import sys; sys.exit(3)\n" + PROGRAM.format(1), r"^p\.py:1: SystemExit: 3", None),
    "sync": ("from capataz import program\n@program\ndef main(): ...\n", r"^p\.py:2: .*async def", None),
    "two inputs": ("from capataz import program\n@program\nasync def main(a: int, b: int): ...\n", r"^p\.py:2: .*one input", None),
    "bad annotation": ("from __future__ import annotations\n" + PROGRAM.format(1).replace("()", "(x: Nope)"), r"Nope", 1),
    "no input": (PROGRAM.format(1).replace("()", "(x: int)"), r"^p\.py:3: program main needs an input of type int", None),
    "wrong input": (PROGRAM.format(1).replace("()", "(x: int)"), r"^p\.py:3: wrong input of main: .*integer", "a"),
    "unwanted input": (PROGRAM.format(1), r"takes no input", {"a": 1}),
    "odd type": ("import asyncio\n" + PROGRAM.format(1).replace("()", "(x: asyncio.Event)"), r"cannot be used as a value's type", 1),
}


@pytest.mark.parametrize("case", LOAD)
async def test_programs_that_do_not_load(zygote: Zygote, tmp_path: Path, case: str) -> None:
    text, expected, input = LOAD[case]
    write(tmp_path, p=text)
    source = find("p.py:main", cwd=tmp_path)
    with pytest.raises(CapatazError, match=expected) as caught:
        await result(zygote, source, input=input)
    assert "\n" not in str(caught.value)
    assert case == "odd type" or isinstance(caught.value, ProgramLoadError)


@pytest.mark.parametrize("ref", ["", ":", "nowhere", "no.where:x", "dir/none.py", "x.py:", "a b", "capataz.vm.nothing:x", "/", "./"])
def test_unknown_programs(tmp_path: Path, ref: str) -> None:
    with pytest.raises(NotFound) as caught:
        find(ref, cwd=tmp_path)
    assert "\n" not in str(caught.value)


def test_finding_runs_nothing(tmp_path: Path) -> None:
    write(tmp_path, p="import q, pk.sub\n" + PROGRAM.format(1), q="raise SystemExit(1)\n", pk____init__="raise SystemExit(2)\n", pk__sub="")
    before = set(sys.modules)
    assert set(find("p.py", cwd=tmp_path).files) == {"@entry", "p.py", "q.py", "pk/__init__.py", "pk/sub.py"}
    assert not {"p", "q", "pk"} & (set(sys.modules) - before)
    assert Path.cwd() != tmp_path
