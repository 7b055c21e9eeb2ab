"""A small HTTP/1.1 server on a unix socket for one sandbox. Its peer is hostile: everything it may send is bounded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import h11

MAX_BODY = 64 << 20
MAX_CONNECTIONS = 64
_HEAD_BYTES = 64 << 10
PULSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str                                  # without the query
    headers: dict[str, str]                    # names in lower case
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """``late``: what to send instead when the head of a stream has gone out already (an error cannot change its status)."""

    status: int
    body: bytes
    content_type: str = "application/json"
    late: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Handler:
    """What answers. ``pulse``: bytes that keep a waiting client of this request awake; None: it waits in silence."""

    async def answer(self, request: Request) -> Response:
        raise NotImplementedError

    def pulse(self, request: Request) -> bytes | None:
        return None

    def delivered(self, request: Request) -> None:
        """The answer went out whole."""


class UnixServer:
    """``async with UnixServer(handler, path)``; ``path`` is at most 107 bytes long."""

    def __init__(self, handler: Handler, path: Path, *, pulse_s: float = PULSE_S) -> None:
        self._handler = handler
        self._path = path
        self._pulse_s = pulse_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> UnixServer:
        self._server = await asyncio.start_unix_server(self._connected, str(self._path))
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            await _Connection(reader, writer, self._handler, self._pulse_s).serve()
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass                               # the program went away, or the agent ended
        finally:
            self._tasks.discard(task)
            writer.close()


class _Gone(Exception):
    """The client left while it waited."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler, pulse_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._pulse_s = pulse_s
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)

    async def serve(self) -> None:
        try:
            while (request := await self._request()) is not None:
                await self._exchange(request)
                if self._wire.our_state is not h11.DONE or self._wire.their_state is not h11.DONE:
                    return
                self._wire.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint or 400)
        except _Gone:
            pass

    async def _request(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._wire.next_event()
            if event is h11.NEED_DATA:
                if self._wire.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                self._wire.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY:
                    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in head.headers}
                return Request(head.method.decode("ascii"), head.target.decode("latin-1").partition("?")[0], headers, bytes(body))
            else:
                return None                    # the connection was closed between requests

    async def _exchange(self, request: Request) -> None:
        work = asyncio.ensure_future(self._handler.answer(request))
        left = asyncio.ensure_future(self._reader.read(65536))
        try:
            began = await self._wait(work, left, self._handler.pulse(request))
        except BaseException:
            work.cancel()
            raise
        finally:
            left.cancel()
            data = (await asyncio.gather(left, return_exceptions=True))[0]
            if isinstance(data, bytes) and data:
                self._wire.receive_data(data)  # the head of a next request, sent early
        response = work.result()
        if began:
            await self._send(h11.Data(data=response.late if response.late is not None else response.body))
        else:
            await self._whole(response, request.method == "HEAD")
        await self._send(h11.EndOfMessage())
        self._handler.delivered(request)

    async def _wait(self, work: asyncio.Future[Response], left: asyncio.Future[bytes], pulse: bytes | None) -> bool:
        """Until there is an answer. True: the head of a stream has gone out."""
        began = False
        while True:
            watched = {work} if left.done() else {work, left}
            await asyncio.wait(watched, timeout=self._pulse_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return began
            if left.done() and not left.result():
                raise _Gone
            if not left.done() and pulse is not None:
                if not began:
                    await self._send(h11.Response(status_code=200, headers=[("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]))
                    began = True
                await self._send(h11.Data(data=pulse))

    async def _whole(self, response: Response, head_only: bool) -> None:
        given = {"Content-Type": response.content_type, "Content-Length": str(len(response.body)), **response.headers}
        await self._send(h11.Response(status_code=response.status, headers=list(given.items())))
        if not head_only:
            await self._send(h11.Data(data=response.body))

    async def _refuse(self, status: int) -> None:
        if self._wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(h11.Response(status_code=status, headers=[("Content-Length", "0"), ("Connection", "close")]))

    async def _send(self, event: h11.Event) -> None:
        data = self._wire.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()
