"""A scripted model provider on loopback: real HTTP/1.1, real wire formats, every misbehaviour of real providers.

``async with ProviderServer(respond) as server`` serves until the block ends. ``respond(request)`` (plain or async)
answers each request with a ``Reply``, ``Failure``, ``Reset``, ``Stall``, ``Truncated`` or ``RawAnswer``; what came in is
kept in ``server.requests``. The wire is told by the path, so one server stands for all providers:
``server.base_url("openai-chat")`` and so on give what goes into each SDK's base URL.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from capataz.testing.provider_wires import BODIES, EVENTS, Call, Event, Reply, Wire, error_body

__all__ = ["Call", "Failure", "ProviderRequest", "ProviderServer", "RawAnswer", "Reply", "Reset", "Stall", "Truncated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An HTTP error in the provider's shape. ``retry_after``: the header's text, seconds or an HTTP date."""

    status: int
    message: str = "scripted failure"
    code: str | None = None
    retry_after: str | None = None
    body: bytes | None = None                  # instead of the provider's shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The connection is reset after ``events`` events of ``reply`` (0: before any byte)."""

    reply: Reply = field(default_factory=Reply)
    events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Silence after ``events`` events of ``reply``, until the client leaves or the server closes."""

    reply: Reply = field(default_factory=Reply)
    events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The stream ends early. ``clean``: with a proper HTTP end, as a proxy in between gives; else the connection breaks."""

    reply: Reply = field(default_factory=Reply)
    events: int = 2
    clean: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """Bytes as they are: malformed JSON and the like."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


Answer = Reply | Failure | Reset | Stall | Truncated | RawAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRequest:
    """A request as it came. ``number`` counts the requests of the server from 0; ``key`` is the API key it showed."""

    number: int
    method: str
    path: str
    wire: Wire
    model: str
    stream: bool
    headers: dict[str, str]
    body: dict[str, Any]
    key: str | None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The conversation in the wire's own form."""
        items = self.body.get({"openai-responses": "input", "google": "contents"}.get(self.wire, "messages"), [])
        return [{"role": "user", "content": items}] if isinstance(items, str) else items

    @property
    def turn(self) -> int:
        """How many assistant turns the conversation holds: 0 at its start."""
        if self.wire == "openai-responses":
            kinds = [m.get("type") in ("function_call", "reasoning") or m.get("role") == "assistant" for m in self.history]
            return sum(now and not before for before, now in zip([False, *kinds], kinds, strict=False))
        return sum(m.get("role") in ("assistant", "model") for m in self.history)

    @property
    def tools(self) -> list[str]:
        tools: list[dict[str, Any]] = self.body.get("tools") or []
        if self.wire == "google":
            return [f["name"] for t in tools for f in t.get("functionDeclarations", [])]
        return [t["function"]["name"] if "function" in t else t.get("name", t.get("type", "")) for t in tools]

    @property
    def text(self) -> str:
        """The whole body as JSON text, to search in."""
        return json.dumps(self.body, ensure_ascii=False)


Respond = Callable[[ProviderRequest], "Answer | Awaitable[Answer]"]


class ProviderServer:
    """``keys``: the API keys that are accepted (others get 401); None: all. ``chop``: bytes in each TCP write (0: whole)."""

    def __init__(self, respond: Respond, *, keys: set[str] | None = None, chop: int = 0, models: tuple[str, ...] = ()) -> None:
        self._respond = respond
        self._keys = keys
        self._chop = chop
        self._models = models
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[ProviderRequest] = []
        self.errors: list[str] = []            # tracebacks of the script
        self.unknown: list[str] = []           # "METHOD PATH" of what no provider serves

    async def __aenter__(self) -> ProviderServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, *, host: str = "127.0.0.1", port: int = 0, unix: str | None = None) -> None:
        """Listens on loopback, or on a unix socket."""
        if unix is not None:
            self._server = await asyncio.start_unix_server(self._serve, unix, limit=1 << 26)
        else:
            self._server = await asyncio.start_server(self._serve, host, port, limit=1 << 26)

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    @property
    def url(self) -> str:
        assert self._server is not None, "the server is not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def base_url(self, wire: Wire) -> str:
        """What the provider's SDK takes as its base URL."""
        return self.url + ("/v1" if wire.startswith("openai") else "")

    # ---- HTTP ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer. False: the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        raw = await self._body(reader, headers)
        out = _Out(writer, self._chop)
        path = target.partition("?")[0]
        if method == "GET" and path.rstrip("/").endswith("/models"):
            listed = [{"id": m, "object": "model", "type": "model", "display_name": m} for m in self._models]
            await out.whole(200, {"object": "list", "data": listed, "has_more": False})
            return True
        request = self._parse(method, path, target, headers, raw)
        if request is None:
            self.unknown.append(f"{method} {target}")
            await out.whole(404, error_body("openai-chat", 404, f"no such path: {path}", None))
            return True
        self.requests.append(request)
        return await self._answer(request, reader, out)

    @staticmethod
    async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await reader.readexactly(int(headers.get("content-length", "0")))
        parts: list[bytes] = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)

    def _parse(self, method: str, path: str, target: str, headers: dict[str, str], raw: bytes) -> ProviderRequest | None:
        google = re.search(r"/models/([^/:]+):(generateContent|streamGenerateContent)$", path)
        endings: dict[str, Wire] = {"/chat/completions": "openai-chat", "/responses": "openai-responses", "/messages": "anthropic"}
        wire: Wire | None = "google" if google else next((w for end, w in endings.items() if path.endswith(end)), None)
        if method != "POST" or wire is None:
            return None
        body = json.loads(raw or b"{}")
        bearer = headers.get("authorization", "").removeprefix("Bearer ") or None
        return ProviderRequest(
            number=len(self.requests), method=method, path=target, wire=wire, headers=headers, body=body,
            model=google[1] if google else str(body.get("model", "")),
            stream=google[2].startswith("stream") if google else bool(body.get("stream")),
            key=headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer,
        )  # fmt: skip

    async def _answer(self, request: ProviderRequest, reader: asyncio.StreamReader, out: _Out) -> bool:
        answer = await self._ask(request)
        match answer:
            case Reply() if request.stream:
                await out.stream(EVENTS[request.wire](answer, request.model))
                return await out.end()
            case Reply():
                await out.whole(200, BODIES[request.wire](answer, request.model))
                return True
            case Failure():
                shaped = answer.body if answer.body is not None else error_body(request.wire, answer.status, answer.message, answer.code)
                await out.whole(answer.status, shaped, {"Retry-After": answer.retry_after} if answer.retry_after else {})
                return True
            case RawAnswer():
                await out.whole(answer.status, answer.body, content_type=answer.content_type)
                return True
            case Reset():
                await self._part(request, answer.reply, answer.events, out)
                out.reset()
            case Stall():
                await self._part(request, answer.reply, answer.events, out)
                await reader.read()            # until the client leaves
            case Truncated():
                await self._part(request, answer.reply, answer.events, out, head=True)
                if answer.clean and request.stream:
                    return await out.end()
        return False

    async def _ask(self, request: ProviderRequest) -> Answer:
        if self._keys is not None and request.key not in self._keys:
            return Failure(status=401, message=f"Incorrect API key provided: {request.key}.", code="invalid_api_key")
        try:
            answer = self._respond(request)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception:
            self.errors.append(traceback.format_exc())
            return Failure(status=400, message="the script of the test's provider raised; see server.errors")

    @staticmethod
    async def _part(request: ProviderRequest, reply: Reply, events: int, out: _Out, *, head: bool = False) -> None:
        """The first ``events`` events of a stream, or half of a whole answer."""
        if request.stream:
            first = [event for event, _ in zip(EVENTS[request.wire](reply, request.model), range(events), strict=False)]
            if first or head:
                await out.stream(iter(first))
        elif events:
            await out.half(BODIES[request.wire](reply, request.model))


_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


class _Out:
    """Writes one answer."""

    def __init__(self, writer: asyncio.StreamWriter, chop: int) -> None:
        self._writer = writer
        self._chop = chop

    async def _send(self, data: bytes) -> None:
        step = self._chop or len(data) or 1
        for start in range(0, len(data), step):
            self._writer.write(data[start : start + step])
            await self._writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}", *(f"{k}: {v}" for k, v in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def whole(self, status: int, body: Any, headers: dict[str, str] | None = None, *, content_type: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self._send(self._head(status, {"Content-Type": content_type, "Content-Length": str(len(data)), **(headers or {})}) + data)

    async def half(self, body: Any) -> None:
        data = json.dumps(body).encode()
        await self._send(self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(data))}) + data[: len(data) // 2])

    async def stream(self, events: Iterator[Event]) -> None:
        await self._send(self._head(200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}))
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            block = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
            raw = block.encode()
            await self._send(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")

    async def end(self) -> bool:
        await self._send(b"0\r\n\r\n")
        return True

    def reset(self) -> None:
        """RST instead of FIN: linger 0."""
        import socket
        import struct

        sock = self._writer.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
