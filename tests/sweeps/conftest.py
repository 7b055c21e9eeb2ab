"""A row for each sweep, and one table of them all at the end of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_kit import Tell

from capataz.store.embedded.launcher import stop_server
from capataz.store.store import Store, open_store
from capataz.testing.crash_sweep import SweepReport

HEAD = ("program", "how", "points", "recovery points", "violations")


@pytest.fixture
def tell(record_property: Callable[[str, Any], None]) -> Tell:
    """Puts a sweep into the table, and fails the test when it has violations."""

    def told(title: str, how: str, report: SweepReport) -> None:
        killed = report.crashes - report.recoveries
        record_property("sweep", [title, how, killed, report.recoveries, len(report.violations)])
        assert not report.violations, "\n".join(str(violation.to_json()) for violation in report.violations)

    return told


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("sweeps") / "home"
    yield place
    if place.exists():
        stop_server(place)


@pytest.fixture
async def store(home: Path) -> AsyncIterator[Store]:
    opened = await open_store(home)
    yield opened
    await opened.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows: dict[tuple[str, str], list[int]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, row in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
                if name == "sweep":
                    sums = rows.setdefault((row[0], row[1]), [0, 0, 0])
                    rows[row[0], row[1]] = [a + b for a, b in zip(sums, row[2:], strict=True)]
    if rows:
        terminalreporter.section("crash sweeps")
        for line in _table(rows):
            terminalreporter.write_line(line)


def _table(rows: dict[tuple[str, str], list[int]]) -> list[str]:
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    cells = [HEAD, *((*names, *(f"{n:,}" for n in numbers)) for names, numbers in rows.items()), ("all", "", *(f"{n:,}" for n in total))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    return ["  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))) for row in cells]
