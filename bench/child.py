"""A contestant in a process of its own: its answer, and the memory and processor time of all its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench import processes
from bench.context import ROOT


@dataclass(frozen=True, slots=True)
class Ended:
    """``peak_mib``: the contestant's own peak resident memory, and the most that its other processes together had at one
    time. Pages that a fork shares count in every process that has them: several processes look larger than they are."""

    answer: dict[str, Any]
    peak_mib: float
    cpu_s: float                               # of all its processes, from its mark "begin" to "end"; whole life without marks
    server_cpu_s: float                        # of the database server in that time
    exit_code: int


class Failed(Exception):
    """The contestant ended without an answer; the text is the end of what it said."""


def run(
    module: str, config: Mapping[str, Any], env: Mapping[str, str], *, server: int | None = None,
    on_line: Callable[[str, int], bool] | None = None,
) -> Ended:
    """Runs ``python -m module CONFIG``. ``server``: the database's first process. ``on_line`` sees each line and the pid, and
    says whether to go on reading; one that stops has killed the process. Raises ``Failed``.

    The last line is the answer, in JSON.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(dict(config))],
            cwd=ROOT, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        )
        watch = processes.Watch(process.pid, server)
        watch.start()
        last, stopped = _read(process, watch, on_line)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        watch.stop()
        if process.returncode != 0 and not stopped:
            errors.seek(0)
            raise Failed(f"{module} ended with {process.returncode}:\n{errors.read().decode('utf-8', 'replace')[-3000:]}")
    answer = json.loads(last) if last.startswith("{") else {}
    cpu_s = watch.cpu_s if watch.cpu_s is not None else used.ru_utime + used.ru_stime
    return Ended(answer, (used.ru_maxrss + watch.others_kib) / 1024, cpu_s, watch.server_cpu_s, process.returncode)


def _read(process: subprocess.Popen[str], watch: processes.Watch, on_line: Callable[[str, int], bool] | None) -> tuple[str, bool]:
    last = ""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            last = line.strip() or last
            if last in ("begin", "end"):
                watch.mark()
            elif on_line is not None and not on_line(last, process.pid):
                return last, True
    return last, False
