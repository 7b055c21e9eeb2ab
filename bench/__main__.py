"""``python -m bench [--only NAME ...] [--quick] [--out FOLDER]``: measures, prints a table, writes JSON and Markdown.

Exit code 0 when everything could be measured, whatever came out: a missed target is in the table, not an error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import table
from bench.context import ROOT, Context, server_settings
from bench.figures import Row

SUITES = ("start_up", "effects", "resume", "tools", "workspace", "fan_out", "check", "job")


def main() -> int:
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix="capataz-bench-", ignore_cleanup_errors=True) as place:
        context = Context(Path(place), given.quick, say=_say)
        try:
            machine = _machine(context)
            rows, failed = _measure(context, given.only or SUITES)
        finally:
            context.close()
    machine["load before and after"] = f"{machine.pop('load')}, {_load()}"
    _write(given.out, rows, machine, failed)
    print(table.text(rows))
    print(f"\nwritten: {given.out / 'latest.json'}, {given.out / 'latest.md'}")
    for name, error in failed.items():
        print(f"\n{name} could not be measured: {error}", file=sys.stderr)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ratios measured in one run on this machine.")
    parser.add_argument("--only", action="append", choices=SUITES, metavar="NAME", help=f"one of {', '.join(SUITES)}; may be repeated")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, the figures mean little")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the results")
    return parser.parse_args()


def _measure(context: Context, names: tuple[str, ...] | list[str]) -> tuple[list[Row], dict[str, str]]:
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for name in names:
        started = time.perf_counter()
        _say(f"{name} ...")
        try:
            rows += importlib.import_module(f"bench.suites.{name}").measure(context)
        except Exception as error:  # one that cannot be measured must not hide the others
            failed[name] = f"{type(error).__name__}: {error}"
        _say(f"{name}: {time.perf_counter() - started:.0f} s")
    return rows, failed


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _machine(context: Context) -> dict[str, Any]:
    """What the figures depend on."""
    settings = server_settings(context.url("bench_capataz"))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processors": len(os.sched_getaffinity(0)),
        "PostgreSQL": ", ".join(f"{name} {value}" for name, value in settings.items()),
        "sizes": "quick" if context.quick else "full",
        "load": _load(),
    }


def _write(folder: Path, rows: list[Row], machine: dict[str, Any], failed: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "rows": [row.to_json() for row in rows], "failed": failed}
    (folder / "latest.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "latest.md").write_text(table.markdown(rows, machine))


if __name__ == "__main__":
    sys.exit(main())
