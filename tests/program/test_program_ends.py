"""How programs end badly, and how their processes do."""

# ruff: noqa: ASYNC220

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from program_kit import HEAD, files, play

from capataz.contracts.errors import (
    AgentFailed,
    CapatazError,
    OrchestrationError,
    ProgramError,
    ProgramFailed,
    ValueNotSerializable,
)
from capataz.vm.posix import children_of
from capataz.vm.rehearsal import rehearse
from capataz.vm.zygote import Zygote

ENDS: dict[str, tuple[type[CapatazError], str]] = {
    "raise ValueError('bad\\nvalue')": (ProgramFailed, r"^audit\.py:10: ValueError: bad value$"),
    "raise AgentFailed('broke')": (AgentFailed, "^broke$"),
    "raise KeyError('x')": (ProgramFailed, "KeyError: 'x'"),
    "__import__('sys').exit(3)": (ProgramFailed, r"audit\.py:10: the program called sys\.exit\(3\)"),
    "await asyncio.create_task(asyncio.to_thread(print))": (ProgramError, "thread"),
    "raise KeyboardInterrupt": (ProgramFailed, "KeyboardInterrupt"),
    "raise asyncio.CancelledError": (ProgramFailed, "CancelledError"),
    "raise ExceptionGroup('g', [AgentFailed('one'), AgentFailed('two')])": (AgentFailed, "^one$"),
    "raise ExceptionGroup('g', [AgentFailed('one'), ValueError()])": (ProgramFailed, "ExceptionGroup: g"),
    "return object()": (ValueNotSerializable, r"audit\.py:\d+: the result of main: a object has no JSON form"),
    "f = lambda: f(); f = (lambda g: lambda: g(g))(lambda g: g(g)); f()": (ProgramFailed, "RecursionError"),
    "a = []; a.append(a); return a": (ValueNotSerializable, "nested too deeply"),
    "asyncio.get_running_loop().stop(); await asyncio.sleep(1)": (ProgramFailed, "."),
    "await asyncio.get_running_loop().shutdown_default_executor(); asyncio.run(main())": (ProgramFailed, "RuntimeError"),
}


@pytest.mark.parametrize("code", ENDS)
async def test_ends(zygote: Zygote, code: str) -> None:
    kind, text = ENDS[code]
    with pytest.raises(kind, match=text) as caught:
        await play(zygote, f"\n@program\nasync def main() -> Any:\n    {code}\n")
    assert type(caught.value) is kind or kind is ProgramError
    assert "\n" not in str(caught.value)


async def test_failure_has_a_short_traceback(zygote: Zygote) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await play(zygote, "\ndef inner():\n    raise ValueError('x')\n@program\nasync def main() -> Any:\n    inner()\n")
    assert caught.value.details == {
        "type": "ValueError",
        "site": "audit.py:9",
        "traceback": '  File "audit.py", line 12, in main\n    inner()\n  File "audit.py", line 9, in inner\n'
        "    raise ValueError('x')\nValueError: x\n",
    }


async def test_delivered_errors_are_caught_by_class(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> list:
        try:
            await run("a", prompt="x")
        except AgentBlocked as error:
            return [str(error), error.details["needs"], error.effect, isinstance(error, OrchestrationError)]
    """

    def answer(request: dict[str, Any]) -> Any:
        from capataz.contracts.errors import AgentBlocked

        raise AgentBlocked("blocked", needs="a key", effect="agent:a#1.0")

    assert await play(zygote, body, answer=answer) == ["blocked", "a key", "agent:a#1.0", True]


async def test_clean_up_of_cancelled_tasks_may_use_effects(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> str:
        async def work():
            try:
                await run("a", prompt="never")
            finally:
                await checkpoint("cleaned")
        asyncio.create_task(work())
        await checkpoint("one")
        return "end"
    """
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body))
        frame = await rehearsal.deliver({"no": frame["requests"][0]["no"], "ok": None})
        assert frame["t"] == "batch" and frame["requests"][0]["input"]["message"] == "cleaned"
        assert [c[0] for c in frame["cancels"]] == [1]
        assert (await rehearsal.deliver({"no": frame["requests"][0]["no"], "ok": None}))["t"] == "done"


async def test_late_deliveries_are_ignored_but_counted(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> str:
        task = asyncio.create_task(run("a", prompt="x"))
        await checkpoint("one")
        task.cancel()
        await checkpoint("two")
        return "end"
    """
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(body))
        one, agent = frame["requests"]
        frame = await rehearsal.deliver({"no": one["no"], "ok": None})
        assert frame["cancels"] == [[agent["no"], "cancelled by the program", 1]] and frame["requests"][0]["after"] == 1
        frame = await rehearsal.deliver({"no": agent["no"], "error": {"code": "effect_cancelled", "message": "x"}})
        assert frame == {"t": "batch", "requests": [], "cancels": [], "seen": 2}
        assert (await rehearsal.deliver())["t"] == "batch"  # an empty frame is answered too
        frame = await rehearsal.deliver({"no": 2, "ok": None})
        assert frame["t"] == "done" and frame["seen"] == 3


async def test_an_endless_loop_can_be_killed(zygote: Zygote) -> None:
    async with rehearse(zygote) as rehearsal:
        sent = asyncio.create_task(rehearsal.start("audit:main", files("@program\nasync def main() -> None:\n    while True: pass\n")))
        await asyncio.sleep(0)
        os.kill(rehearsal.process.pid, signal.SIGTERM)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await sent
        async with asyncio.timeout(10):
            await rehearsal.process.wait()


async def test_end_of_the_stream_ends_the_process(zygote: Zygote) -> None:
    process = await zygote.spawn()
    process.writer.close()
    async with asyncio.timeout(10):
        await process.wait()
    await process.kill()
    await process.kill()


async def test_a_dead_zygote_is_replaced() -> None:
    zygote = await Zygote.start()
    process = await zygote.spawn()
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        await process.wait()
    await process.kill()
    assert await play(zygote, "@program\nasync def main() -> int:\n    return 1\n") == 1
    await zygote.close()
    with pytest.raises((OrchestrationError, ProcessLookupError)):
        os.kill(process.pid, 0)
        raise OrchestrationError("still there")


KERNEL = """
import asyncio, sys
from capataz.vm.rehearsal import rehearse
from capataz.vm.wire import pack
from capataz.vm.zygote import Zygote
async def main():
    zygote = await Zygote.start()
    async with rehearse(zygote) as rehearsal:
        await rehearsal.start("audit:main", {"audit.py": open(sys.argv[1]).read()}, sys.argv[2])
        rehearsal.process.writer.write(pack({"t": "fork", "no": 0, "env": {"PATH": "/bin:/usr/bin"}}))
        while not __import__("os").path.exists(sys.argv[2]):
            await asyncio.sleep(0.01)
        print(zygote.pid, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
STEP = HEAD + """
def hang(path):
    import subprocess, time
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    open(path, "w").write("x")
    time.sleep(600)
@program
async def main(input: str) -> None:
    await step("hang", hang, input)
"""


async def test_nothing_outlives_the_kernel(tmp_path: Path) -> None:
    """kill -9 of the kernel's process ends zygote, program, step and what the step started in a session of its own."""
    (tmp_path / "p.py").write_text(STEP)
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, str(tmp_path / "p.py"), str(tmp_path / "x")], stdout=subprocess.PIPE)
    assert kernel.stdout is not None
    zygote_pid = int(await asyncio.to_thread(kernel.stdout.readline))
    family = [zygote_pid, *children_of([zygote_pid])]
    assert len(family) == 4
    kernel.kill()
    await asyncio.to_thread(kernel.wait)
    async with asyncio.timeout(20):
        while any(alive(pid) for pid in family):
            await asyncio.sleep(0.01)
    kernel.stdout.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


DEAF_KERNEL = """
import asyncio, os, select, socket
from capataz.vm.zygote import Zygote
async def main():
    zygote = await Zygote.start()
    ours, theirs = socket.socketpair()
    await zygote._send({"spawn": 1}, theirs.fileno())
    theirs.close()
    descriptor = zygote._sock.fileno()
    select.select([descriptor], [], [])      # told of the spawn, which it never reads
    zygote._sock.detach()
    os.close(descriptor)
    os._exit(await zygote._process.wait())
asyncio.run(main())
"""


async def test_a_kernel_that_ends_deaf_leaves_no_traceback_behind() -> None:
    """A socket whose other end goes with something in it unread is reset, not closed; a kill does that."""
    kernel = subprocess.Popen([sys.executable, "-c", DEAF_KERNEL], stderr=subprocess.PIPE)
    _, said = await asyncio.to_thread(kernel.communicate, None, 20)
    assert (kernel.returncode, said) == (0, b"")
