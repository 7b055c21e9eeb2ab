"""Steps' functions in forked children of the program process: guard off, an environment of their own, killed as a tree."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import select
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capataz.vm import determinism, guard
from capataz.vm.posix import die_with_parent, kill_group, kill_tree, sweep
from capataz.vm.steperrors import died, error_of
from capataz.vm.values import plain
from capataz.vm.wire import pack, unpack

_HEAD = struct.Struct(">I")
Forked = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Child:
    no: int
    name: str
    pid: int
    pipe: int
    pidfd: int
    data: bytearray = field(default_factory=bytearray)

    def complete(self) -> bool:
        return len(self.data) >= _HEAD.size and len(self.data) >= _HEAD.size + _HEAD.unpack_from(self.data)[0]


class Steps:
    """The step children of one program process. ``private``: descriptors that a child must not hold."""

    def __init__(self, private: list[int]) -> None:
        self._private = private
        self._children: dict[int, _Child] = {}  # by pipe and by pidfd

    def __bool__(self) -> bool:
        return bool(self._children)

    def descriptors(self) -> list[int]:
        return list(self._children)

    def start(self, no: int, name: str, call: Callable[[], Any], env: dict[str, str]) -> None:
        """Forks a child that runs ``call``."""
        with guard.lifted():
            pipe, write = os.pipe()
            parent = os.getpid()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                os.close(pipe)
                _child_main(call, write, env, parent, [*self._private, *self._children])
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            os.close(write)
            os.set_blocking(pipe, False)
            child = _Child(no, name, pid, pipe, os.pidfd_open(pid))
            self._children[child.pipe] = self._children[child.pidfd] = child

    def ready(self, descriptor: int) -> Forked | None:
        """Reads from a child; the ``forked`` frame when it has ended."""
        child = self._children.get(descriptor)
        if child is None:
            return None
        ended = _read(child) or descriptor == child.pidfd
        if not child.complete() and not ended:
            return None
        return self._finish(child)

    def kill(self, no: int) -> None:
        """Kills a step's child with all its descendants; its ``forked`` frame follows."""
        with guard.lifted():
            for child in set(self._children.values()):
                if child.no == no:
                    kill_tree(child.pid)

    def kill_all(self) -> None:
        for child in set(self._children.values()):
            self.kill(child.no)

    def _finish(self, child: _Child) -> Forked:
        """Answered: nothing of it may linger. The pidfd says when the leader is gone; until it is reaped its pid is ours."""
        for descriptor in (child.pipe, child.pidfd):
            del self._children[descriptor]
        with guard.lifted():
            if child.complete():
                # A clean end is a matter of microseconds; exit handlers or threads that hang are not waited for.
                select.select([child.pidfd], [], [], 0.2)
            if child.complete() and _gone(child.pidfd):
                kill_group(child.pid)
            else:
                kill_tree(child.pid)
            _, status = os.waitpid(child.pid, 0)
            os.close(child.pipe)
            os.close(child.pidfd)
            if not self._children:
                sweep()  # what left the group: it was adopted by this process, and no other step can own it now
        if child.complete():
            return {"t": "forked", "no": child.no, **unpack(bytes(child.data[_HEAD.size :]))}
        return {"t": "forked", "no": child.no, "error": died(child.name, os.waitstatus_to_exitcode(status))}


def _gone(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _read(child: _Child) -> bool:
    """Takes what the pipe holds; True at its end."""
    while True:
        try:
            data = os.read(child.pipe, 1 << 20)
        except BlockingIOError:
            return False
        if not data:
            return True
        child.data += data


# ---- in the child --------------------------------------------------------------------------------


def _child_main(call: Callable[[], Any], write: int, env: dict[str, str], parent: int, private: list[int]) -> None:
    code = 1
    try:
        guard.switch(False)
        _settle_in(env, parent, private)
        contextvars.Context().run(_answer, call, write)
        code = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            _send(write, {"error": error_of(error)})
            code = 0
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _settle_in(env: dict[str, str], parent: int, private: list[int]) -> None:
    os.setpgid(0, 0)
    die_with_parent(parent)
    for descriptor in private:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    with contextlib.suppress(OSError):
        os.chdir(env.get("PWD") or "/")  # where the run was started; the folder may be gone by now
    asyncio._set_running_loop(None)  # pyright: ignore  # the program's loop was running when we forked
    sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
    sys.dont_write_bytecode = False
    determinism.leave()


def _answer(call: Callable[[], Any], write: int) -> None:
    result = call()
    if inspect.isawaitable(result):
        result = asyncio.run(_await(result))
    _send(write, {"ok": plain(result)})


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _send(write: int, answer: dict[str, Any]) -> None:
    data = memoryview(pack(answer))
    while data:
        data = data[os.write(write, data) :]
