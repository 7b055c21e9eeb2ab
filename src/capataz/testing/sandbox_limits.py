"""Commands without measure: memory, processes, disk, output, time. Part of the conformance suite of sandboxes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from capataz.contracts.sandbox import CommandResult, Limits
from capataz.testing.sandbox_conformance import Bench, check, expect

_MIB = 1 << 20


def _killed(result: CommandResult, reason: str) -> None:
    expect(result.reason == reason, f"reason {result.reason} instead of {reason}, exit code {result.exit_code}, {result.stderr[-200:]!r}")


@check("memory")
async def one_greedy_process(b: Bench) -> None:
    s = await b.session(limits=Limits(memory_bytes=128 * _MIB))
    result = await b.python("a = []\nwhile True: a.append(b'x' * (4 << 20))", s, timeout_s=30)
    _killed(result, "memory")
    expect(result.exit_code == -1, f"{result.exit_code}")
    expect((await b.sh("echo on", s)).stdout == b"on\n", "the session did not survive")


@check("memory")
async def many_greedy_processes(b: Bench) -> None:
    """Each is small: only the sum is over the limit."""
    s = await b.session(limits=Limits(memory_bytes=160 * _MIB))
    script = "import os, time\nfor n in range(12):\n    if os.fork() == 0:\n        a = b'x' * (30 << 20); time.sleep(20); os._exit(0)\ntime.sleep(20)"
    _killed(await b.python(script, s, timeout_s=30), "memory")
    fine = await b.python("a = b'x' * (60 << 20); print(len(a))", s)
    expect(fine.reason == "exit" and fine.exit_code == 0, f"memory within the limit was refused: {fine}")


@check("memory", "filesystem")
async def memory_in_files(b: Bench) -> None:
    """``/tmp`` and ``/dev/shm`` are memory too."""
    s = await b.session(limits=Limits(memory_bytes=128 * _MIB))
    script = "for d in /tmp /dev/shm /tmp /dev/shm; do head -c 60M /dev/zero > $d/$RANDOM.$$ || exit 9; done; head -c 200M /dev/zero > /tmp/z || exit 9; sleep 20"
    result = await b.sh(script, s, timeout_s=20)
    expect(result.reason == "memory" or (result.reason == "exit" and result.exit_code != 0), f"{result}")


@check("pids")
async def fork_bomb(b: Bench) -> None:
    s = await b.session(limits=Limits(pids=64))
    started = time.monotonic()
    result = await b.python("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", s, timeout_s=20)
    _killed(result, "pids")
    expect(time.monotonic() - started < 10, "it took too long")
    for bomb in ("bomb() { bomb | bomb & }; bomb; sleep 5", "import os\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid()"):
        run = b.sh if bomb.startswith("bomb") else b.python
        await run(bomb, s, timeout_s=1)
        expect((await b.sh("echo on", s)).stdout == b"on\n", "the session did not survive")
    fine = await b.sh("for n in 1 2 3 4 5 6 7 8; do sleep 0.01 & done; wait; echo ok", s)
    expect((fine.stdout, fine.reason) == (b"ok\n", "exit"), f"processes within the limit were refused: {fine}")


@check("disk")
async def disk_fill(b: Bench) -> None:
    s = await b.session(limits=Limits(disk_bytes=48 * _MIB))
    script = "mkdir d; n=0; while :; do n=$((n+1)); head -c 1M /dev/zero > d/$n || exit 9; done"
    _killed(await b.sh(script, s, timeout_s=30), "disk")
    await s.files.remove(b"d")
    expect((await b.sh("echo on; echo x > ok", s)).reason == "exit", "the session did not survive")


@check("disk")
async def disk_fill_in_one_file(b: Bench) -> None:
    s = await b.session(limits=Limits(disk_bytes=24 * _MIB))
    result = await b.sh("exec head -c 400M /dev/zero > big", s, timeout_s=30)
    expect(result.reason == "disk" or result.exit_code != 0, f"{result}")
    expect((b.folder / "files" / "big").stat().st_size <= 80 * _MIB, "the file is far over the limit")


@check("disk")
async def disk_fill_without_a_name(b: Bench) -> None:
    """Files that are open and removed, in folders that nobody may read."""
    s = await b.session(limits=Limits(disk_bytes=48 * _MIB))
    script = (
        "import os\nfds = []\nos.mkdir('x'); os.chdir('x'); os.chmod('.', 0o300)\n"
        "while True:\n    fd = os.open(f'f{len(fds)}', os.O_CREAT | os.O_RDWR); os.unlink(f'f{len(fds)}'); fds.append(fd)\n"
        "    os.write(fd, bytes(1 << 20)); os.fsync(fd) if len(fds) % 16 == 0 else None\n"
    )
    _killed(await b.python(script, s, timeout_s=30), "disk")


@check()
async def output_flood(b: Bench) -> None:
    """A gigabyte (64 MiB when quick) is answered in time, and this process does not grow by it."""
    size = 64 if b.quick else 1024
    s = await b.session()
    before = _resident()
    started = time.monotonic()
    result = await b.sh(f"head -c {size}M /dev/zero; head -c 1M /dev/zero >&2; echo end", s, timeout_s=60)
    expect(result.reason == "exit" and result.stdout_total == size * _MIB + 4 and result.stdout.endswith(b"end\n"), f"{result.reason} {result.stdout_total}")
    expect(len(result.stdout) <= 64 << 10 and len(result.stderr) <= 64 << 10, "too much was kept")
    expect(_resident() - before < 32 * _MIB, "memory grew with the output")
    expect(time.monotonic() - started < 30, "it took too long")


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@check("cpu")
async def processor_time(b: Bench) -> None:
    s = await b.session(limits=Limits(cpu_s=0.6))
    result = await b.sh("(while :; do :; done) & while :; do :; done", s, timeout_s=20)
    _killed(result, "timeout")
    expect(result.duration_s < 10, "it ran far longer than its processor time")


@check()
async def a_flood_does_not_block_others(b: Bench) -> None:
    s = await b.session()
    flood = asyncio.create_task(b.sh("yes", s, timeout_s=1.0))
    await asyncio.sleep(0)
    for _ in range(5):
        expect((await asyncio.wait_for(s.run(["echo", "hi"]), 5)).stdout == b"hi\n", "a command beside a flood failed")
    expect((await flood).reason == "timeout", "the flood was not ended")
