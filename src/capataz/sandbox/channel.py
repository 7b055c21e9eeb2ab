"""The worker's end of the control socket: requests and answers in any order, file descriptors beside them."""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress

from capataz.contracts.errors import CapatazError, ForbiddenAccess, NotFound, SandboxFailed, UsageError
from capataz.sandbox.resident import wire

_CHUNK = 256 << 10
_REFUSALS: dict[int, type[CapatazError]] = {wire.FORBIDDEN: ForbiddenAccess, wire.MISSING: NotFound, wire.USAGE: UsageError}


class Channel:
    """Frames to and from one helper. ``on_frame`` gets what answers no request, with the descriptors that came along."""

    def __init__(self, sock: socket.socket, on_frame: Callable[[wire.Frame, list[int]], None], on_close: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_close = on_close
        self._decoder = wire.Decoder()
        self._fds: list[int] = []
        self._answers: dict[int, asyncio.Future[wire.Frame]] = {}
        self._next = 0
        self._sending = asyncio.Lock()
        self._ready: asyncio.Future[None] | None = None
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def next_id(self) -> int:
        self._next += 1
        return self._next

    async def request(self, op: int, a: int = 0, b: int = 0, *blobs: bytes, fds: Sequence[int] = ()) -> wire.Frame:
        """The answer. Raises what a FAIL stands for, ``SandboxFailed`` when the helper is or goes away."""
        id = self.next_id()
        answer = self._answers[id] = self._loop.create_future()
        try:
            await self.send(wire.pack(op, id, a, b, *blobs), fds)
            frame = await answer
        finally:
            self._answers.pop(id, None)
        if frame.op == wire.FAIL:
            message = frame.blobs[0].decode("utf-8", "replace") if frame.blobs else "refused"
            raise _REFUSALS.get(frame.a, SandboxFailed)(message)
        return frame

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Sends whole frames in order; a cancelled caller's frame is still sent to its end."""
        if self.closed:
            raise SandboxFailed("the sandbox is gone")
        if not self._sending.locked():
            try:
                sent = self._push(data, fds)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return
            # The lock is free and this task has not yielded, so nobody can have put a frame in between.
            rest = self._loop.create_task(self._send_rest(data, sent, fds if sent == 0 else ()))
        else:
            rest = self._loop.create_task(self._send_rest(data, 0, fds))
        await asyncio.shield(rest)

    async def _send_rest(self, data: bytes, sent: int, fds: Sequence[int]) -> None:
        async with self._sending:
            while sent < len(data):
                try:
                    sent += self._push(data[sent : sent + (1 << 20)], fds)
                    fds = ()
                except BlockingIOError:
                    await self._writable()

    def _push(self, data: bytes, fds: Sequence[int]) -> int:
        if self.closed:
            raise SandboxFailed("the sandbox is gone")
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        try:
            return self._socket.sendmsg([data], extra)
        except BlockingIOError:
            raise
        except OSError as error:
            self.close()
            raise SandboxFailed(f"the sandbox is gone: {error.strerror}") from None

    async def _writable(self) -> None:
        self._ready = self._loop.create_future()
        self._loop.add_writer(self._socket.fileno(), self._wake_writer)
        try:
            await self._ready
        finally:
            if not self.closed:
                self._loop.remove_writer(self._socket.fileno())

    def _wake_writer(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_CHUNK, socket.CMSG_SPACE(4 * 16), getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array("i")
                fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
                self._fds += fds
        if not data:
            self.close()
            return
        try:
            frames = self._decoder.feed(data)
        except ValueError:
            self.close()
            return
        for frame in frames:
            self._dispatch(frame)

    def _dispatch(self, frame: wire.Frame) -> None:
        answer = self._answers.get(frame.id) if frame.op in (wire.OK, wire.FAIL) else None
        if answer is not None:
            if not answer.done():
                answer.set_result(frame)
            return
        taken: list[int] = []
        if frame.op == wire.CONNECTED and self._fds:
            taken.append(self._fds.pop(0))
        self._on_frame(frame, taken)

    def close(self) -> None:
        """Idempotent. Every open request fails."""
        if self.closed:
            return
        self.closed = True
        fd = self._socket.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._socket.close()
        for fd in self._fds:
            with suppress(OSError):
                os.close(fd)
        self._fds.clear()
        self._wake_writer()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(SandboxFailed("the sandbox is gone"))
        self._on_close()
