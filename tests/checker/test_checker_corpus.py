"""Each seeded fault is found at its line and nothing else is said; correct programs raise no error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus import Case, cases

from capataz.vm.checker import Report
from capataz.wiring.checking import check_program

FAULTY, CORRECT = cases("faulty"), cases("correct")


def checked(case: Case, folder: Path) -> Report:
    (folder / "flow.py").write_text(case.text, "utf-8")
    return check_program("flow.py", cwd=folder)


def test_the_corpus_is_large() -> None:
    assert len(FAULTY) >= 60
    assert len(CORRECT) >= 30
    assert all(case.expected for case in FAULTY)


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.title)
def test_a_seeded_fault_is_found_at_its_line(case: Case, tmp_path: Path) -> None:
    report = checked(case, tmp_path)
    found = {(f.code, f.place.line) for f in report.findings}
    assert case.expected <= found
    assert {(f.code, f.place.line) for f in report.errors} <= case.expected
    assert all(f.place.file == "flow.py" and f.place.col >= 1 and f.message and f.fix for f in report.findings)


@pytest.mark.parametrize("case", CORRECT, ids=lambda case: case.title)
def test_a_correct_program_has_no_error_and_no_warning(case: Case, tmp_path: Path) -> None:
    assert [str(f) for f in checked(case, tmp_path).findings] == []
