"""Programs by path, import, entry point and name; several files; what cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from capataz.contracts.errors import NotFound, ProgramLoadError
from capataz.vm.closure import list_programs
from capataz.wiring.checking import check_program

ROOT = Path(__file__).parents[2]

SOUND = '''from capataz import program, run

@program
async def one() -> str:
    """One."""
    return (await run("a", prompt="x")).text

@program
async def two() -> None:
    """Two."""
'''


@pytest.mark.parametrize("name", sorted(list_programs()))
def test_programs_that_are_listed_have_no_error(name: str) -> None:
    assert [str(f) for f in check_program(name).errors] == []


@pytest.mark.parametrize("folder", ["tests/vm/programs", "bench/programs", "docs/examples", "src/capataz/programs"])
def test_programs_of_the_project_have_no_error(folder: str) -> None:
    files = [f for f in sorted((ROOT / folder).glob("*.py")) if "@program" in f.read_text("utf-8")]
    assert files
    for file in files:
        assert [str(f) for f in check_program(str(file)).errors] == []


def test_a_file_with_several_programs_is_checked_whole(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(SOUND, "utf-8")
    report = check_program("flow.py", cwd=tmp_path)
    assert [bound.program for bound in report.bounds] == ["one", "two"]
    assert (report.bounds[0].use.agents.value, report.bounds[1].use.agents.value) == (1, 0)
    assert report.bound.use.agents.value == 1
    assert [b.program for b in check_program("flow.py:two", cwd=tmp_path).bounds] == ["two"]


def test_a_program_by_import(tmp_path: Path) -> None:
    package = tmp_path / "flows" / "nightly"
    package.mkdir(parents=True)
    (tmp_path / "flows" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text("from .helpers import work\n" + SOUND.replace('"""One."""', 'work()'), "utf-8")
    (package / "helpers.py").write_text("import os\n\n\ndef work() -> None:\n    os.remove('x')\n", "utf-8")
    report = check_program("flows.nightly.jobs:one", cwd=tmp_path)
    assert [(f.code, f.place.file, f.place.line, f.place.col) for f in report.errors] == [("CPZ002", "flows/nightly/helpers.py", 5, 5)]
    assert [b.program for b in check_program("flows.nightly.jobs", cwd=tmp_path).bounds] == ["one", "two"]


def test_a_program_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    (tmp_path / "flow.py").write_text(SOUND, "utf-8")
    point = SimpleNamespace(name="nightly", value="flow:two")
    monkeypatch.setattr(metadata, "entry_points", lambda **given: [point] if given.get("name", "nightly") == "nightly" else [])
    assert [b.program for b in check_program("nightly", cwd=tmp_path).bounds] == ["two"]


def test_imports_of_the_file_are_followed(tmp_path: Path) -> None:
    (tmp_path / "verbs.py").write_text("from capataz import run as go, program as prog\n", "utf-8")
    (tmp_path / "models.py").write_text("from pydantic import BaseModel\n\n\nclass Job(BaseModel):\n    pr: int\n", "utf-8")
    (tmp_path / "child.py").write_text(
        "from models import Job\nfrom verbs import prog\n\n\n@prog\nasync def child(input: Job) -> int:\n    return input.pr\n", "utf-8"
    )
    (tmp_path / "flow.py").write_text(
        "import child\nfrom models import Job\nfrom verbs import go, prog\n\n\n@prog\nasync def flow() -> None:\n"
        "    await go(child.child, input=Job(pr=1))\n    await go(child.child, input=Job(p=1))\n    go(child.child, input='x')\n",
        "utf-8",
    )
    report = check_program("flow.py", cwd=tmp_path)
    assert [(f.code, f.place.line) for f in report.errors] == [("CPZ018", 9), ("CPZ001", 10), ("CPZ018", 10)]


def test_a_loaded_child_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(
        "from capataz import program\n\n\n@program\nasync def main(input: int) -> int:\n    return open(str(input)).fileno()\n", "utf-8"
    )
    (tmp_path / "flow.py").write_text(
        'from capataz import load, program, run\n\n\n@program\nasync def flow() -> None:\n    await run(load("child.py:main"), input=3)\n', "utf-8"
    )
    found = check_program("flow.py", cwd=tmp_path).errors
    assert [(f.code, f.place.line) for f in found] == [("CPZ020", 6)]
    assert "1 error, the first in line 6" in found[0].message
    (tmp_path / "child.py").write_text("from capataz import program\n\n\n@program\nasync def main(input: int) -> int:\n    return input\n", "utf-8")
    (tmp_path / "flow.py").write_text((tmp_path / "flow.py").read_text("utf-8").replace("input=3", "input='x'"), "utf-8")
    assert [f.code for f in check_program("flow.py", cwd=tmp_path).errors] == ["CPZ018"]


def test_a_program_that_loads_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        'from capataz import load, program, run\n\n\n@program\nasync def flow() -> None:\n    await run(load("flow.py:flow"))\n', "utf-8"
    )
    assert check_program("flow.py", cwd=tmp_path).errors == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "flow.py:1"),
        ("x = 1\n", "no @program"),
        ("from capataz import program\n\n\nasync def flow() -> None: ...\n", "no @program"),
        ("\x00", "flow.py"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "flow.py").write_text(text, "utf-8")
    with pytest.raises(ProgramLoadError, match=said):
        check_program("flow.py", cwd=tmp_path)


@pytest.mark.parametrize("name", ["missing.py", "missing", "flow.py:nobody", "pkg.mod:nobody"])
def test_a_program_that_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "flow.py").write_text(SOUND, "utf-8")
    with pytest.raises((NotFound, ProgramLoadError)):
        check_program(name, cwd=tmp_path)


def test_nothing_of_the_program_is_run(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(f"{SOUND}\nopen('touched', 'w').close()\nraise SystemExit(3)\n", "utf-8")
    before = set(sys.modules)
    assert [f.code for f in check_program("flow.py", cwd=tmp_path).errors] == ["CPZ002"]
    assert not (tmp_path / "touched").exists()
    assert "flow" not in set(sys.modules) - before


def test_generated_source_may_be_deep(tmp_path: Path) -> None:
    terms = " + ".join(["'x'"] * 3000)
    (tmp_path / "flow.py").write_text(f"from capataz import program\n\n\n@program\nasync def flow() -> str:\n    return {terms}\n", "utf-8")
    limit = sys.getrecursionlimit()
    assert check_program("flow.py", cwd=tmp_path).findings == ()
    assert sys.getrecursionlimit() == limit
