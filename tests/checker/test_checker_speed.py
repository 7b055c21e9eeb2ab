"""A check takes under 100 ms a file, also one of a thousand lines."""

from __future__ import annotations

import time
from pathlib import Path

from capataz.vm.checker import RULES, check


def test_a_file_of_a_thousand_lines_is_checked_within_100_ms(tmp_path: Path) -> None:
    head, _, body = next(iter(RULES.values())).passing.partition("\n\n")
    count = 1000 // body.count("\n") + 1
    text = "\n\n".join([head, *(body.replace("nightly", f"nightly_{n}") for n in range(count))])
    assert text.count("\n") >= 1000
    (tmp_path / "large.py").write_text(text, "utf-8")
    assert min(_cpu_ms(tmp_path / "large.py") for _ in range(3)) < 100


def _cpu_ms(file: Path) -> float:
    started = time.process_time()
    assert check(str(file)).errors == ()
    return (time.process_time() - started) * 1000
