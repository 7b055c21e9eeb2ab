"""The conformance suite of sandbox backends: what the port promises, tried, attacks included.

``run_suite(sandbox, folder)`` needs no test framework: ``capataz doctor`` runs it on the user's host, the tests against
every backend. A check that needs something the backend does not enforce is reported as ``not enforced``, never as passed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from capataz.contracts.errors import CapatazError, SandboxFailed
from capataz.contracts.sandbox import CommandResult, Limits, Sandbox, SandboxSpec, Session, WorkspaceMount


class Broken(AssertionError):
    """A promise of the port that was not kept."""


def expect(condition: object, message: str) -> None:
    if not condition:
        raise Broken(message)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``detail`` is one line."""

    check: str
    status: Literal["passed", "failed", "not enforced"]
    detail: str
    seconds: float


@dataclass
class Bench:
    """What a check works with: the backend and a private folder on the host. Sessions are killed when the check ends."""

    sandbox: Sandbox
    folder: Path
    quick: bool = False
    sessions: list[Session] = field(default_factory=list[Session])
    seconds: str = field(default_factory=lambda: str(9 * 10**8 + secrets.randbelow(10**8)))
    """How long a command sleeps that is looked for on the host by this number: other suites may run there."""

    async def session(self, **spec: Any) -> Session:
        """A session; the workspace is a plain folder ``self.folder/"files"`` unless the check names one."""
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        session = await self.sandbox.start(SandboxSpec(**{"workspace": WorkspaceMount(upper=files), **spec}))
        self.sessions.append(session)
        return session

    async def sh(self, script: str, session: Session | None = None, **options: Any) -> CommandResult:
        """Runs a shell script."""
        session = session or await self.session()
        return await session.run(["sh", "-c", script], **{"timeout_s": 20, **options})

    async def python(self, script: str, session: Session | None = None, **options: Any) -> CommandResult:
        """Runs a Python script with the interpreter that the sandbox offers."""
        session = session or await self.session()
        return await session.run(["python3", "-I", "-S", "-c", script], **{"timeout_s": 20, **options})


async def raises(call: Awaitable[object], *errors: type[CapatazError]) -> None:
    """Exactly one of ``errors`` (a subclass is another error)."""
    try:
        value = await call
    except CapatazError as error:
        expect(type(error) in errors, f"{type(error).__name__} instead of {errors[0].__name__}: {error}")
        expect("\n" not in str(error), "the message has more than one line")
        return
    raise Broken(f"{errors[0].__name__} expected, got {value!r:.80}")


Check = Callable[[Bench], Awaitable[None]]
_CHECKS: dict[str, tuple[Check, frozenset[str]]] = {}


def check(*needs: str) -> Callable[[Check], Check]:
    """Registers a check. ``needs``: what the backend must enforce for it to mean anything (``memory`` fits ``memory:cgroup``)."""

    def register(function: Check) -> Check:
        _CHECKS[function.__name__] = (function, frozenset(needs))
        return function

    return register


def names() -> list[str]:
    """Every check, in the order that they run in."""
    from capataz.testing import sandbox_attacks, sandbox_files, sandbox_limits

    assert sandbox_attacks and sandbox_files and sandbox_limits  # imported for what they register
    return list(_CHECKS)


async def run_suite(sandbox: Sandbox, folder: Path, *, only: Iterable[str] | None = None, quick: bool = False) -> list[Finding]:
    """Runs the checks one after another. Raises ``SandboxUnavailable`` if the backend cannot start here at all.

    ``folder``: where workspaces are made (and removed). ``quick`` leaves sizes small, for a user who waits.
    """
    chosen = [name for name in names() if only is None or name in set(only)]
    enforced = frozenset(word for feature in await sandbox.probe() for word in (feature, feature.partition(":")[0]))
    return [await _run_one(sandbox, folder, name, enforced, quick) for name in chosen]


async def _run_one(sandbox: Sandbox, folder: Path, name: str, enforced: frozenset[str], quick: bool) -> Finding:
    function, needs = _CHECKS[name]
    missing = needs - enforced
    if missing:
        return Finding(name, "not enforced", ", ".join(sorted(missing)), 0.0)
    bench = Bench(sandbox, Path(tempfile.mkdtemp(dir=folder, prefix=f"{name}-")), quick)
    started = time.monotonic()
    try:
        await function(bench)
        return Finding(name, "passed", "", time.monotonic() - started)
    except (Broken, CapatazError, TimeoutError) as error:
        return Finding(name, "failed", f"{type(error).__name__}: {error}", time.monotonic() - started)
    finally:
        for session in bench.sessions:
            await session.kill()
        await asyncio.to_thread(shutil.rmtree, bench.folder, True)


# ---- commands


@check()
async def exit_codes(b: Bench) -> None:
    s = await b.session()
    for script, code in (("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)):
        result = await b.sh(script, s)
        expect((result.exit_code, result.reason) == (code, "exit"), f"{script!r} gave {result.exit_code} {result.reason}")


@check()
async def commands_that_cannot_start(b: Bench) -> None:
    (b.folder / "files").mkdir()
    (b.folder / "files" / "plain.txt").write_text("no program")
    s = await b.session()
    for argv, cwd, code in ((["no-such-program"], "/workspace", 127), (["./plain.txt"], "/workspace", 126), (["true"], "/workspace/none", 126)):
        result = await s.run(argv, cwd=cwd)
        expect(result.exit_code == code, f"{argv} in {cwd} gave {result.exit_code}")
        expect(len(result.stderr.splitlines()) == 1, f"{argv} did not say why in one line: {result.stderr!r}")


@check()
async def input_environment_and_folder(b: Bench) -> None:
    s = await b.session(env={"OF_SESSION": "1"})
    await s.files.write(b"sub/x", b"")
    big = os.urandom(300_000)
    result = await s.run(["cat"], stdin=big, output_limit=400_000)
    expect(result.stdout == big, "stdin did not arrive whole")
    result = await b.sh("echo $OF_SESSION$OF_CALL; ls", s, env={"OF_CALL": "2"}, cwd="/workspace/sub")
    expect(result.stdout == b"12\nx\n", f"environment or folder: {result.stdout!r}")
    expect((await s.run(["cat"])).stdout == b"", "no stdin is not an empty one")


@check()
async def output_is_cut_in_the_middle(b: Bench) -> None:
    script = "import sys; sys.stdout.write('A' * 50000 + 'B' * 50000); sys.stderr.write('e' * 10)"
    result = await b.python(script, output_limit=1000)
    kept = len(result.stdout)
    expect(result.stdout_total == 100_000 and result.stderr_total == 10, "totals are wrong")
    expect(kept <= 1000 and result.stdout.startswith(b"AAA") and result.stdout.endswith(b"BBB"), "head and tail were not kept")
    expect(str(result.truncated).encode() in result.stdout, "the cut is not marked")
    expect(result.stderr == b"e" * 10, "the short stream was touched")


@check()
async def long_output_is_spooled(b: Bench) -> None:
    s = await b.session()
    result = await b.python("print('x' * 100 + '\\n' + 'y' * 200000)", s, output_limit=1000, spool_limit=150_000)
    expect(result.full_stdout is not None and result.full_stderr is None, "only the long stream has a file")
    assert result.full_stdout is not None
    text = result.full_stdout.read_bytes()
    result.full_stdout.unlink()
    expect(len(text) == 150_000 and text.startswith(b"x" * 100 + b"\nyyy"), "the file is not the start of the output")
    seen: list[bytes] = []
    await b.sh("echo one; echo two >&2", s, on_output=seen.append)
    expect(sorted(b"".join(seen).split()) == [b"one", b"two"], "on_output did not see all")


@check()
async def time_is_limited(b: Bench) -> None:
    s = await b.session()
    started = time.monotonic()
    result = await b.sh("echo early; trap '' TERM INT HUP; while :; do sleep 60; done", s, timeout_s=0.3)
    expect((result.exit_code, result.reason, result.stdout) == (-1, "timeout", b"early\n"), f"{result}")
    expect(time.monotonic() - started < 5, "it took far longer than its time")
    expect((await b.sh("echo on", s)).stdout == b"on\n", "the session did not survive a timeout")


@check()
async def daemons_die_with_their_command(b: Bench) -> None:
    """``setsid`` and a double fork, holding the pipes: answered at once, and nothing is left."""
    s = await b.session()
    started = time.monotonic()
    for script in ("setsid sleep 987 & echo done", "(setsid sh -c 'sleep 987 & sleep 987' &) ; echo done", "nohup sleep 987 & echo done"):
        result = await b.sh(script, s)
        expect(result.stdout.endswith(b"done\n") and result.exit_code == 0, f"{script!r} gave {result}")
    expect(time.monotonic() - started < 10, "the command waited for its daemon")
    expect(not await _sees(s, "987"), "a daemon outlived its command")


async def _sees(session: Session, word: str) -> bool:
    script = (
        "import os\nfound = []\nfor p in os.listdir('/proc'):\n"
        "    if p.isdigit() and int(p) != os.getpid():\n"
        "        try: found += open(f'/proc/{p}/cmdline').read().split(chr(0))\n"
        "        except OSError: pass\n"
        f"print({word!r} in found)"
    )
    result = await session.run(["python3", "-I", "-S", "-c", script])
    return b"True" in result.stdout


@check()
async def a_cancelled_call_kills(b: Bench) -> None:
    s = await b.session()
    seen = asyncio.Event()
    task = asyncio.create_task(s.run(["sh", "-c", "echo up; sleep 986"], on_output=lambda data: seen.set()))
    await asyncio.wait_for(seen.wait(), 10)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=10)
    expect(done and task.cancelled(), "the cancelled call did not end")
    expect(not await _sees(s, "986"), "the command of a cancelled call lives")


@check()
async def commands_side_by_side(b: Bench) -> None:
    """The end of one command does not touch another's tree."""
    s = await b.session()
    up = asyncio.Event()
    long = asyncio.create_task(s.run(["sh", "-c", "(sleep 0.7; echo child) & echo up; wait"], on_output=lambda data: up.set()))
    await asyncio.wait_for(up.wait(), 10)
    for script in ("setsid sleep 985 & true", "sleep 984"):
        await b.sh(script, s, timeout_s=0.2)
    result = await long
    expect((result.exit_code, result.stdout) == (0, b"up\nchild\n"), f"the neighbour was hit: {result}")
    many = await asyncio.gather(*(b.sh(f"echo {n}", s) for n in range(6)))
    expect([r.stdout for r in many] == [b"%d\n" % n for n in range(6)], "answers were mixed up")


@check()
async def kill_ends_everything(b: Bench) -> None:
    s = await b.session()
    up = asyncio.Event()
    running = asyncio.create_task(s.run(["sh", "-c", f"setsid sleep {b.seconds} & echo up; sleep {b.seconds}"], on_output=lambda data: up.set()))
    await asyncio.wait_for(up.wait(), 10)
    await asyncio.gather(s.kill(), s.kill())
    expect(not host_processes(b.seconds.encode()), "a process outlived its session")
    result = await asyncio.wait_for(running, 5)
    expect((result.exit_code, result.reason) == (-1, "killed"), f"the killed command gave {result}")
    for call in (s.run(["true"]), s.files.stat(b"x")):
        try:
            await call
        except SandboxFailed:
            continue
        raise Broken("a killed session answered")


def host_processes(word: bytes) -> list[int]:
    """Processes of the whole host that have ``word`` among their arguments."""
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if word in (place / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(place.name))
            except OSError:
                continue
    return found


@check("wall")
async def the_session_has_a_wall_time(b: Bench) -> None:
    s = await b.session(limits=Limits(wall_s=0.5))
    result = await b.sh("sleep 60", s)
    expect(result.reason == "timeout" and (await b.sh("true", s)).reason == "timeout", "the wall time did not end the session's commands")


async def quick_suite(sandbox: Sandbox, folder: Path) -> list[Finding]:
    """The suite in small sizes, for ``capataz doctor`` (about 15 seconds)."""
    return await run_suite(sandbox, folder, quick=True)
