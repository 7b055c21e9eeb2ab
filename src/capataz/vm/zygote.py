"""The zygote: a warm parent that forks program processes in about a millisecond.

It has ``capataz`` and pydantic imported, a clean environment and nothing secret. It is the parent and the reaper of all that
programs start: when the kernel's process ends, however, the zygote sees the end of its socket, kills every descendant and ends.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.contracts.errors import OrchestrationError, SandboxUnavailable
from capataz.vm import posix
from capataz.vm.pipe import ProcessSource

Launch = Callable[[list[str], Mapping[str, str]], tuple[list[str], list[int]]]
"""The command line for Python's arguments and environment, and descriptors that it inherits and that are closed here afterwards."""

_PACKET = 4096
_CONFINED_LIMITS = {resource.RLIMIT_AS: 2 << 30, resource.RLIMIT_FSIZE: 64 << 20, resource.RLIMIT_CORE: 0}
WARM = (
    "decimal", "jinja2.sandbox", "capataz.coding", "capataz.vm.running", "capataz.vm.parallel", "capataz.vm.people",
    "capataz.vm.verbs", "capataz.vm.program", "capataz.vm.states", "capataz.vm.epochs", "capataz.vm.tools",
)  # fmt: skip
"""What programs are likely to import: a fork has it already."""


# ---- the kernel's side ---------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class ProgramProcess:
    """A program process, as the kernel holds it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int
    _zygote: Zygote

    async def kill(self) -> None:
        """Kills it with all that its steps started; returns when it is gone. Idempotent."""
        self.writer.close()
        await self._zygote.end(self.pid)

    async def wait(self) -> None:
        """Returns when it has ended."""
        await self._zygote.ended(self.pid)


class Zygote:
    """``await Zygote.start()``, then ``spawn()`` as often as needed; ``close()`` at the end."""

    def __init__(self, launch: Launch | None = None) -> None:
        self._launch = launch or _bare
        self._sock: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._spawning: dict[int, asyncio.Future[int]] = {}
        self._exits: dict[int, asyncio.Event] = {}
        self._next = 0
        self._starting = asyncio.Lock()

    @classmethod
    async def start(cls, launch: Launch | None = None) -> Zygote:
        """Starts the warm parent. Raises ``OrchestrationError`` when it cannot be started."""
        zygote = cls(launch)
        await zygote._ensure()
        return zygote

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def spawn(self) -> ProgramProcess:
        """A fresh program process. A zygote that died is replaced first."""
        await self._ensure()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            pid = await self._ask_spawn(theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ProgramProcess(reader, writer, pid, self)

    async def end(self, pid: int) -> None:
        """Kills one of its processes and waits until it is reaped."""
        gone = self._exits.get(pid)
        if gone is None:
            return
        with contextlib.suppress(OrchestrationError):  # it took its processes along
            await self._send({"kill": pid})
        await gone.wait()
        self._exits.pop(pid, None)

    async def ended(self, pid: int) -> None:
        """Returns when one of its processes is gone."""
        gone = self._exits.get(pid)
        if gone is not None:
            await gone.wait()

    async def close(self) -> None:
        """Ends it and everything that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        self._drop()
        await process.wait()

    async def _ensure(self) -> None:
        async with self._starting:
            if self._sock is not None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            inherited: list[int] = []
            try:
                command, inherited = self._launch(["-P", "-m", "capataz.vm.zygote", str(theirs.fileno())], _environment())
                self._process = await asyncio.create_subprocess_exec(
                    *command, pass_fds=[theirs.fileno(), *inherited], env=_environment(), cwd="/", stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # a Ctrl-C at the terminal is the kernel's business
                )  # fmt: skip
            except OSError as error:
                ours.close()
                raise OrchestrationError(f"the program process cannot be started: {error}") from error
            finally:
                theirs.close()
                for descriptor in inherited:
                    os.close(descriptor)
            self._sock = ours
            asyncio.get_running_loop().add_reader(ours.fileno(), self._receive)

    async def _ask_spawn(self, sock: socket.socket) -> int:
        self._next += 1
        number = self._next
        future = self._spawning[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"spawn": number}, sock.fileno())
            return await future
        finally:
            self._spawning.pop(number, None)

    async def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        data = json.dumps(message).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        while True:
            if self._sock is None:
                raise OrchestrationError("the parent of program processes is gone")
            try:
                self._sock.sendmsg([data], rights)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)  # its queue of packets is full
            except OSError as error:
                self._drop()
                raise OrchestrationError(f"the parent of program processes is gone: {error}") from error

    def _receive(self) -> None:
        while self._sock is not None:
            try:
                data = self._sock.recv(_PACKET)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop()
                return
            self._take(json.loads(data))

    def _take(self, message: dict[str, Any]) -> None:
        if "spawned" in message:
            pid = message["pid"]
            self._exits[pid] = asyncio.Event()
            future = self._spawning.get(message["spawned"])
            if future is not None and not future.done():
                future.set_result(pid)
        elif message["exited"] in self._exits:
            self._exits[message["exited"]].set()

    def _drop(self) -> None:
        """The zygote is gone or let go: so are its processes."""
        sock, self._sock = self._sock, None
        if sock is not None:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        for gone in self._exits.values():
            gone.set()
        for future in self._spawning.values():
            if not future.done():
                future.set_exception(OrchestrationError("the parent of program processes is gone"))


class Confined:
    """A source of program processes each of which has a zygote, and a sandbox around that, of its own."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    async def spawn(self) -> ConfinedProcess:
        """Raises ``SandboxUnavailable`` where there is no sandbox: nothing runs then."""
        zygote = await Zygote.start(self._launch)
        try:
            return ConfinedProcess(await zygote.spawn(), zygote)
        except OrchestrationError as error:
            await zygote.close()
            raise SandboxUnavailable(f"the sandbox of an untrusted program did not start: {error.message}; see `capataz doctor`") from error
        except BaseException:
            await zygote.close()
            raise


class ConfinedProcess:
    """See ``ProgramProcess``; its sandbox ends with it."""

    def __init__(self, process: ProgramProcess, zygote: Zygote) -> None:
        self._zygote = zygote
        self.reader, self.writer, self.pid = process.reader, process.writer, process.pid

    async def kill(self) -> None:
        self.writer.close()
        await self._zygote.close()


def _bare(arguments: list[str], env: Mapping[str, str]) -> tuple[list[str], list[int]]:
    return [sys.executable, *arguments], []


def _environment() -> dict[str, str]:
    """A clean environment in which this very ``capataz`` is found."""
    env = {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    root = str(Path(__file__).parents[2])
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        env["PYTHONPATH"] = root
    return env


# ---- the zygote's own process --------------------------------------------------------------------


class _Parent:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._programs: set[int] = set()
        self._pid = os.getpid()
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        self._write = write
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if self._sock.fileno() in ready and not self._take():
                return

    def _take(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, _PACKET, 1)
        except ConnectionResetError:           # the kernel was killed before it had read all that it was told
            return False
        if not data:
            return False
        message = json.loads(data)
        if "spawn" in message:
            self._spawn(message["spawn"], descriptors[0])
        elif message["kill"] in self._programs:  # hence not reaped: the pid is still its own
            posix.kill_tree(message["kill"])
        return True

    def _spawn(self, number: int, descriptor: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_program(descriptor)
        os.close(descriptor)
        self._programs.add(pid)
        self._tell({"spawned": number, "pid": pid})

    def _become_program(self, descriptor: int) -> None:
        from capataz.vm.process import Process, settle_in

        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._sock.fileno(), self._wake, self._write):
                os.close(own)
            os.setpgid(0, 0)
            posix.die_with_parent(self._pid)
            os.dup2(2, 1)
            settle_in()
            Process(socket.socket(fileno=descriptor)).serve()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(70)

    def _reap(self) -> None:
        """Tells of ended programs, and kills what their steps left: orphans become our children."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._programs:
                self._programs.discard(pid)
                ended = True
                self._tell({"exited": pid, "status": status})
        if ended:
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        everybody = posix.children_of([self._pid])
        theirs = set(posix.children_of(self._programs)) | self._programs
        for pid in everybody:
            if pid not in theirs:
                posix.kill(pid)

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._sock.send(json.dumps(message).encode())


def _warm_up() -> None:
    """Imports what programs use, so that a fork has it."""
    import gc

    from capataz.vm.process import warm_up

    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    warm_up()
    gc.collect()
    gc.freeze()


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    posix.adopt_orphans()
    if sys.argv[2:] == ["confined"]:
        for limit, value in _CONFINED_LIMITS.items():
            resource.setrlimit(limit, (value, value))
    parent = _Parent(sock)
    try:
        _warm_up()
        parent.serve()
    finally:
        posix.sweep()


async def describe(ref: str, files: dict[str, str], zygote: ProcessSource, **given: Any) -> dict[str, Any]:
    """What a program is (``name``, ``ref``, ``doc``, schemas of ``input`` and ``output``), found out in a program process.

    With ``input=``, checks that the program takes it: raises ``ProgramLoadError`` that says what does not fit.
    """
    from capataz.contracts.errors import error_from_json
    from capataz.vm.wire import pack, read_frame

    process = await zygote.spawn()
    try:
        process.writer.write(pack({"t": "describe", "ref": ref, "files": files, **given}))
        answer = await read_frame(process.reader)
    finally:
        await process.kill()
    if "error" in answer:
        raise error_from_json(answer["error"])
    described: dict[str, Any] = answer["ok"]
    return described


if __name__ == "__main__":
    main()
