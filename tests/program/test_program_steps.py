"""Steps run outside the program: in a child with its own environment, killed as a tree, errors as they were raised."""

# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from program_kit import files

from capataz.contracts.errors import AgentFailed, ProgramLoadError, StepFailed
from capataz.vm.rehearsal import Rehearsal, outcome, rehearse
from capataz.vm.wire import pack
from capataz.vm.zygote import Zygote

HELPERS = """
import os, subprocess, sys, time, threading, json
from pydantic import BaseModel

class Out(BaseModel):
    n: int

def env() -> dict[str, str]:
    return dict(os.environ)

def double(n: int) -> Out:
    return Out(n=2 * n)

async def later(n):
    await asyncio.sleep(0.01)
    return n + 1

def everything(path):
    open(path, "w").write("x")
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
    print("to stderr")
    return [subprocess.check_output(["/bin/echo", "hi"]).decode(), sys.stdin.read(), time.time() > 1_700_000_100]

def fail(kind):
    if kind == "value":
        raise ValueError("bad", 3)
    if kind == "file":
        open("/no/such/file")
    if kind == "own":
        raise Own("mine")
    if kind == "json":
        json.loads("{")
    if kind == "ours":
        raise AgentFailed("from a step", task="t")
    if kind == "exit":
        sys.exit(3)
    if kind == "kill":
        os.kill(os.getpid(), 9)
    if kind == "quit":
        os._exit(4)
    if kind == "object":
        return object()

class Own(Exception):
    pass
"""


async def drive(zygote: Zygote, body: str, input: Any = None, env: dict[str, str] | None = None) -> Any:
    """Runs a program and performs its steps as the kernel does."""
    async with rehearse(zygote) as rehearsal:
        frame = await rehearsal.start("audit:main", files(HELPERS + body), input)
        while frame["t"] == "batch":
            for request in frame["requests"]:
                assert request["kind"] == "step"
                forked = await rehearsal.send(t="fork", no=request["no"], env=env or {})
                assert forked.pop("t") == "forked"
                frame = await rehearsal.deliver(forked)
        return outcome(frame)


def main(code: str) -> str:
    lines = "\n".join(f"    {line}" for line in code.strip().splitlines())
    return f"\n@program\nasync def main(input: Any = None) -> Any:\n{lines}\n"


async def test_results_are_typed(zygote: Zygote) -> None:
    body = main("out = await step('d', double, 4)\nassert isinstance(out, Out)\nreturn [out.n, await step('l', later, 1)]")
    assert await drive(zygote, body) == [8, 2]


async def test_outside_everything_is_allowed(zygote: Zygote, tmp_path: Path) -> None:
    body = main("return await step('e', everything, input)")
    assert await drive(zygote, body, str(tmp_path / "x")) == ["hi\n", "", True]
    assert (tmp_path / "x").read_text() == "x"


async def test_environment_is_the_given_one(zygote: Zygote) -> None:
    assert await drive(zygote, main("return await step('e', env)"), env={"A": "1", "PATH": "/bin"}) == {"A": "1", "PATH": "/bin"}


async def test_builtin_exceptions_are_the_same(zygote: Zygote) -> None:
    code = """
try:
    await step('f', fail, 'value')
except ValueError as error:
    assert isinstance(error.__cause__, StepFailed)
    first = [error.args, error.__cause__.details['type'], 'raise ValueError' in error.__cause__.details['traceback']]
try:
    await step('f', fail, 'file')
except FileNotFoundError as error:
    return [*first, error.errno, error.filename]
"""
    assert await drive(zygote, main(code)) == [["bad", 3], "ValueError", True, 2, "/no/such/file"]


FAILURES = {
    "value": (StepFailed, r"ValueError: \('bad', 3\)"),
    "own": (StepFailed, "Own: mine"),
    "json": (StepFailed, "JSONDecodeError: Expecting"),
    "ours": (AgentFailed, "from a step"),
    "exit": (StepFailed, "SystemExit: 3"),
    "kill": (StepFailed, "was killed by SIGKILL"),
    "quit": (StepFailed, "left its process with exit code 4"),
    "object": (StepFailed, "no JSON form"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_uncaught_failures(zygote: Zygote, kind: str) -> None:
    expected, text = FAILURES[kind]
    if kind == "object":
        expected = Exception
    with pytest.raises(expected, match=text):
        await drive(zygote, main("return await step('f', fail, input)"), kind)


REFUSED = {
    "step('x', lambda: input)": "uses input from around it",
    "step('x', __import__('functools').partial(double, 1))": "needs a plain function",
    "step('x', Own('a').with_traceback, None)": "needs a plain function",
    "step('x', 5)": "needs a function",
}


@pytest.mark.parametrize("code", REFUSED)
async def test_functions_that_hide_inputs(zygote: Zygote, code: str) -> None:
    with pytest.raises(ProgramLoadError, match=REFUSED[code]):
        await drive(zygote, main(f"return await {code}"))


TREE = """
def tree(path):
    # A child that leaves the group and holds every descriptor, and one that ignores signals.
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; sleep 600"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    open(path, "w").write("started")
    HANG
"""


def descendants(zygote: Zygote) -> list[int]:
    from capataz.vm.posix import children_of

    assert zygote.pid is not None
    return children_of([zygote.pid])


async def started(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


async def begin(rehearsal: Rehearsal, tmp_path: Path, hang: str) -> None:
    body = HELPERS + TREE.replace("HANG", hang) + main("return await step('t', tree, input)")
    await rehearsal.start("audit:main", files(body), str(tmp_path / "x"))
    rehearsal.process.writer.write(pack({"t": "fork", "no": 0, "env": {"PATH": "/bin:/usr/bin"}}))
    await started(tmp_path / "x")


async def test_kill_ends_the_whole_tree(zygote: Zygote, tmp_path: Path) -> None:
    async with rehearse(zygote) as rehearsal:
        await begin(rehearsal, tmp_path, "time.sleep(600)")
        answer = await rehearsal.send(t="kill", no=0)
        assert answer["t"] == "forked" and answer["error"]["code"] == "step_failed" and "SIGKILL" in answer["error"]["message"]
        assert descendants(zygote) == [rehearsal.process.pid]


async def test_what_a_step_leaves_behind_ends_with_it(zygote: Zygote, tmp_path: Path) -> None:
    async with rehearse(zygote) as rehearsal:
        await begin(rehearsal, tmp_path, "return 1")
        assert await rehearsal.receive() == {"t": "forked", "no": 0, "ok": 1}
        assert descendants(zygote) == [rehearsal.process.pid]


@pytest.mark.parametrize("how", ["kill", "stop", "close"])
async def test_steps_end_with_the_program(zygote: Zygote, tmp_path: Path, how: str) -> None:
    async with rehearse(zygote) as rehearsal:
        await begin(rehearsal, tmp_path, "time.sleep(600)")
        if how == "stop":
            rehearsal.process.writer.write(pack({"t": "stop"}))
        elif how == "close":
            rehearsal.process.writer.close()
        if how != "kill":
            async with asyncio.timeout(10):
                await rehearsal.process.wait()
    async with asyncio.timeout(10):
        while descendants(zygote):
            await asyncio.sleep(0.01)


async def test_steps_run_side_by_side(zygote: Zygote, tmp_path: Path) -> None:
    body = HELPERS + """
def meet(own, other):
    open(own, "w").close()
    for _ in range(2000):
        if os.path.exists(other):
            return own
        time.sleep(0.01)
""" + main("return await asyncio.gather(step('a', meet, input + 'a', input + 'b'), step('b', meet, input + 'b', input + 'a'))")
    async with rehearse(zygote) as rehearsal:
        await rehearsal.start("audit:main", files(body), str(tmp_path / "x"))
        for no in (0, 1):
            rehearsal.process.writer.write(pack({"t": "fork", "no": no, "env": {}}))
        answers = [await rehearsal.receive(), await rehearsal.receive()]
        assert sorted(a["ok"][-1] for a in answers) == ["a", "b"]
        await rehearsal.deliver(*({"no": a["no"], "ok": a["ok"]} for a in answers))


async def test_large_results(zygote: Zygote) -> None:
    body = "\ndef big(n):\n    return 'ü' * n\n" + main("return len(await step('b', big, 5_000_000))")
    assert await drive(zygote, body) == 5_000_000
