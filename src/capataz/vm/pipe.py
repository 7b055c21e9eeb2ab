"""The kernel's end of the pipe to a program process: one reader, answers by kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError, error_from_json
from capataz.vm.wire import pack, read_frame


class ProgramProcess(Protocol):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int

    async def kill(self) -> None: ...


class ProcessSource(Protocol):
    async def spawn(self) -> ProgramProcess: ...


class ProcessDied(Exception):
    """The program's process is gone without a last word: its run starts it again from the journal."""


class Pipe:
    def __init__(self, process: ProgramProcess) -> None:
        self._process = process
        self._batches: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._calls: dict[int, asyncio.Future[JsonValue]] = {}
        self._forks: dict[int, asyncio.Future[JsonValue]] = {}
        self._next_call = 0
        self._dead = False

    @classmethod
    @asynccontextmanager
    async def open(cls, source: ProcessSource) -> AsyncIterator[Pipe]:
        process = await source.spawn()
        pipe = cls(process)
        reader = asyncio.create_task(pipe._read())
        try:
            yield pipe
        finally:
            await process.kill()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                self._dispatch(await read_frame(self._process.reader))
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            self._dead = True
            self._batches.put_nowait({"t": "dead"})
            for future in [*self._calls.values(), *self._forks.values()]:
                if not future.done():
                    future.set_exception(ProcessDied())
                    future.exception()

    def _dispatch(self, frame: dict[str, Any]) -> None:
        match frame["t"]:
            case "called":
                _settle(self._calls.pop(frame["id"], None), frame)
            case "forked":
                _settle(self._forks.pop(frame["no"], None), frame)
            case _:
                self._batches.put_nowait(frame)

    def _write(self, frame: JsonValue) -> None:
        if not self._dead:
            self._process.writer.write(pack(frame))

    async def ask(self, frame: JsonValue) -> dict[str, Any]:
        """Sends a frame that is answered by a batch."""
        self._write(frame)
        return await self.batch()

    async def batch(self) -> dict[str, Any]:
        """The program's next batch. Raises ``ProcessDied``."""
        if self._dead and self._batches.empty():
            raise ProcessDied
        frame = await self._batches.get()
        if frame["t"] == "dead":
            raise ProcessDied
        return frame

    async def batch_within(self, seconds: float) -> dict[str, Any] | None:
        """The same, or None when there is none by then."""
        if not self._batches.empty():
            return await self.batch()
        try:
            async with asyncio.timeout(seconds):
                return await self.batch()
        except TimeoutError:
            return None

    def deliver(self, items: list[dict[str, Any]]) -> None:
        """Hands completions to the program, which answers with a batch."""
        self._write({"t": "deliver", "items": items})

    async def call(self, callback: int, args: JsonValue) -> JsonValue:
        self._next_call += 1
        number = self._next_call
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._write({"t": "call", "id": number, "callback": callback, "args": args})
        if self._dead:
            raise ProcessDied
        return await future

    async def fork(self, what: dict[str, Any]) -> JsonValue:
        no = what["no"]
        future = self._forks[no] = asyncio.get_running_loop().create_future()
        self._write({"t": "fork", **what})
        if self._dead:
            raise ProcessDied
        try:
            return await future
        except asyncio.CancelledError:
            self._write({"t": "kill", "no": no})
            raise


def _settle(future: asyncio.Future[JsonValue] | None, frame: dict[str, Any]) -> None:
    if future is None or future.done():
        return
    if "error" in frame:
        future.set_exception(_error(frame["error"]))
    else:
        future.set_result(frame.get("ok"))


def _error(data: dict[str, Any]) -> CapatazError:
    return error_from_json(data)
