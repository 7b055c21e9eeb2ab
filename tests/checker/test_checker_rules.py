"""Every rule shows a program that breaks it and one that keeps it; both are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capataz.vm.checker import RULES, Rule
from capataz.wiring.checking import check_program


def test_codes_are_in_order_and_say_the_severity() -> None:
    assert list(RULES) == sorted(RULES)
    assert all(re.fullmatch(r"CPZ[01]\d\d", code) and rule.code == code for code, rule in RULES.items())
    assert {rule.severity for code, rule in RULES.items() if code < "CPZ1"} == {"error"}
    assert {rule.severity for code, rule in RULES.items() if code > "CPZ1"} == {"warning"}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)
def test_the_failing_example_fails_at_its_line(rule: Rule, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(rule.failing, "utf-8")
    lines = {n for n, line in enumerate(rule.failing.splitlines(), 1) if line.endswith(f"# {rule.code}")}
    found = {(f.code, f.place.line) for f in check_program("flow.py", cwd=tmp_path).findings}
    assert lines
    assert found == {(rule.code, line) for line in lines}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)
def test_the_passing_example_keeps_the_rule(rule: Rule, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(rule.passing, "utf-8")
    report = check_program("flow.py", cwd=tmp_path)
    assert [str(f) for f in report.errors] == []
    assert rule.code not in {f.code for f in report.findings}
