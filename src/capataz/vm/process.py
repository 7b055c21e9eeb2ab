"""A program process: reads frames, runs the program on the deterministic loop, sends batches. See ``wire``.

It is forked from the zygote, holds no secret, and dies with its parent. Nothing here survives a crash and nothing needs to:
the kernel starts another one and delivers the journal again.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import os
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from capataz.contracts.errors import ProgramFailed
from capataz.vm import determinism, guard, importer, posix
from capataz.vm.failures import error_json
from capataz.vm.life import deadlock, live, load_program
from capataz.vm.loop import ProgramLoop, order_asyncio
from capataz.vm.runtime import Runtime, scope_path, set_current
from capataz.vm.steps import Steps
from capataz.vm.values import plain
from capataz.vm.watchdog import BUSY_S, Watchdog
from capataz.vm.wire import frame_length, pack, unpack

COLLECT_EVERY = 5_000
"""Deliveries between garbage collections: at a fixed place, so that finalizers run alike in every process."""

ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}


class Channel:
    """Frames over a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    def send(self, frame: dict[str, Any]) -> None:
        """A kernel that was killed ends the process, as at ``fill``."""
        try:
            self.sock.sendall(pack(frame))
        except (BrokenPipeError, ConnectionResetError):
            leave()

    def fill(self) -> None:
        """Waits for bytes. The kernel's end of the stream ends the process."""
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionResetError:           # it was killed before it had read all that it was sent
            leave()
        if not data:
            leave()
        self._buffer += data

    def take(self) -> dict[str, Any] | None:
        """The next whole frame that has arrived."""
        if len(self._buffer) < 4:
            return None
        end = 4 + frame_length(bytes(self._buffer[:4]))
        if len(self._buffer) < end:
            return None
        frame: dict[str, Any] = unpack(bytes(self._buffer[4:end]))
        del self._buffer[:end]
        return frame


def leave() -> NoReturn:
    """Ends the process at once; the parent reaps it and whatever its steps left."""
    os._exit(0)


class Process:
    """One program from ``start`` to ``done`` or ``failed``."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock)
        self._steps = Steps([sock.fileno()])
        self._items: deque[dict[str, Any]] = deque()
        self._runtime: Runtime | None = None
        self._loop: ProgramLoop | None = None
        self._watchdog = Watchdog(self._overrun)
        self._collected = 0
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "deliver": self._deliver,
            "call": self._call,
            "fork": self._fork,
            "kill": lambda frame: self._steps.kill(frame["no"]),
            "stop": self._stop,
        }

    def serve(self) -> NoReturn:
        frame = self._next_frame()
        if frame["t"] == "describe":
            self._channel.send(self._describe(frame))
        elif frame["t"] == "start":
            self._channel.send(self._run(frame))
        while True:  # steps that were cancelled may still be killed; then comes ``stop`` or the end of the stream
            frame = self._next_frame()
            if frame["t"] != "deliver":
                self._handlers[frame["t"]](frame)

    # ---- a program -----------------------------------------------------------------------------

    def _run(self, frame: dict[str, Any]) -> dict[str, Any]:
        runtime = Runtime(seed=frame.get("seed"), now=float(frame.get("now") or 0), scope=frame.get("scope") or "")
        self._runtime = runtime
        set_current(runtime)
        last = contextvars.copy_context().run(self._execute, runtime, frame)
        return {**runtime.take_batch(), **last}

    def _execute(self, runtime: Runtime, frame: dict[str, Any]) -> dict[str, Any]:
        scope_path.set(runtime.scope)
        loop = self._loop = ProgramLoop(runtime, self._idle)
        self._watchdog.start(float(frame.get("busy_s") or BUSY_S))
        guard.switch(True)
        try:
            _prepare(frame)
            program = load_program(frame["ref"], frame.get("files"))
            arguments = program.bind(frame.get("input"))
            task = loop.create_task(live(loop, runtime, program, arguments))
            task.add_done_callback(lambda _: loop.stop())
            loop.run_forever()
            return {"t": "done", "result": task.result()}
        except BaseException as error:
            guard.switch(False)
            return {"t": "failed", "error": error_json(error)}
        finally:
            guard.switch(False)
            self._watchdog.end()

    def _describe(self, frame: dict[str, Any]) -> dict[str, Any]:
        set_current(Runtime(seed="describe", now=0, scope=""))
        self._watchdog.start(BUSY_S)
        guard.switch(True)
        try:
            _prepare(frame)
            program = load_program(frame["ref"], frame.get("files"))
            if "input" in frame:
                program.bind(frame["input"])
            return {"t": "described", "ok": plain(program.describe())}
        except BaseException as error:
            guard.switch(False)
            return {"t": "described", "error": error_json(error)}
        finally:
            guard.switch(False)
            self._watchdog.end()

    def _overrun(self, error: ProgramFailed) -> None:
        """Program code never yields: the last word is said in its place. A callback of an agent only fails by itself."""
        runtime = self._runtime
        if runtime is None:
            self._channel.send({"t": "described", "error": error.to_json()})
        elif runtime.closed:
            raise error
        else:
            guard.switch(False)
            self._channel.send({**runtime.take_batch(), "t": "failed", "error": error.to_json()})
        self._steps.kill_all()
        leave()

    # ---- idle ----------------------------------------------------------------------------------

    def _idle(self) -> None:
        """The loop has nothing to do: hand it the next item, asking the kernel when there is none."""
        runtime = self._runtime
        assert runtime is not None
        if not self._items:
            if not runtime.waiting:
                raise deadlock(self._loop)
            self._send_batch()
            while not self._items:
                frame = self._next_frame()
                self._watchdog.feed()
                self._handlers[frame["t"]](frame)
        self._collect(runtime)
        runtime.deliver(self._items.popleft())

    def _collect(self, runtime: Runtime) -> None:
        if runtime.delivered - self._collected >= COLLECT_EVERY:
            self._collected = runtime.delivered
            gc.collect()

    def _send_batch(self) -> None:
        assert self._runtime is not None
        self._channel.send({"t": "batch", **self._runtime.take_batch()})

    def _next_frame(self) -> dict[str, Any]:
        while True:
            frame = self._channel.take()
            if frame is not None:
                return frame
            if self._steps:
                self._watch_steps()
            else:
                self._channel.fill()

    def _watch_steps(self) -> None:
        poll = select.poll()
        sock = self._channel.sock.fileno()
        for descriptor in (sock, *self._steps.descriptors()):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll():
            if descriptor == sock:
                self._channel.fill()
            elif (answer := self._steps.ready(descriptor)) is not None:
                self._channel.send(answer)

    # ---- frames --------------------------------------------------------------------------------

    def _deliver(self, frame: dict[str, Any]) -> None:
        self._items.extend(frame["items"])
        if not self._items:
            self._send_batch()

    def _call(self, frame: dict[str, Any]) -> None:
        assert self._runtime is not None
        with guard.lifted():
            guard.switch(True)
            answer = contextvars.copy_context().run(self._called, self._runtime, frame)
        self._channel.send({"t": "called", "id": frame["id"], **answer})

    def _called(self, runtime: Runtime, frame: dict[str, Any]) -> dict[str, Any]:
        determinism.isolate(runtime, str(frame["callback"]))
        arguments = frame.get("args")
        runtime.closed = True
        try:
            callback = runtime.callbacks[frame["callback"]]
            return {"ok": plain(callback(*(arguments if isinstance(arguments, list) else [arguments])))}
        except BaseException as error:
            return {"error": error_json(error)}
        finally:
            runtime.closed = False

    def _fork(self, frame: dict[str, Any]) -> None:
        assert self._runtime is not None
        no = frame["no"]
        call = self._function(self._runtime, frame)
        if call is None:
            gone = ProgramFailed(f"request {no} is no step that waits")
            self._channel.send({"t": "forked", "no": no, "error": gone.to_json()})
            return
        try:
            self._steps.start(no, frame.get("name") or f"step {no}", call, frame.get("env") or {})
        except OSError as error:
            self._channel.send({"t": "forked", "no": no, "error": error_json(error)})

    @staticmethod
    def _function(runtime: Runtime, frame: dict[str, Any]) -> Callable[[], Any] | None:
        """A step's, by its request, or a tool's, by its callback."""
        if "callback" not in frame:
            return runtime.steps.get(frame["no"])
        callback = runtime.callbacks.get(frame["callback"])
        return None if callback is None else functools.partial(callback, *frame["args"])

    def _stop(self, frame: dict[str, Any]) -> None:
        self._steps.kill_all()
        leave()


def _prepare(frame: dict[str, Any]) -> None:
    files: dict[str, str] = frame.get("files") or {}
    with guard.lifted():
        for path in frame.get("path") or ():
            sys.path.append(path)
        importer.install(files)


def warm_up() -> None:
    """What the zygote does once for all that it forks: none of it shows until ``guard`` is switched on."""
    order_asyncio()
    determinism.install()
    guard.install()


def settle_in() -> None:
    """What a fresh fork does before program code runs in it."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.dont_write_bytecode = True
    gc.disable()
    posix.adopt_orphans()
