"""Drives a program process without a kernel: for tests of programs and of the program side itself. Nothing is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import CapatazError, error_from_json
from capataz.vm.wire import pack, read_frame
from capataz.vm.zygote import ProgramProcess, Zygote

Frame = dict[str, Any]
Answer = Callable[[Frame], JsonValue]
"""A request to its result. Raising a ``CapatazError`` delivers it; returning ``LATER`` leaves the request open."""

LATER: Any = object()


class Rehearsal:
    """``send`` frames, get the answering batch; ``log`` holds every frame that came back."""

    def __init__(self, process: ProgramProcess) -> None:
        self.process = process
        self.log: list[Frame] = []
        self.clock = 1_700_000_000.0

    async def send(self, **frame: Any) -> Frame:
        self.process.writer.write(pack(frame))
        return await self.receive()

    async def receive(self) -> Frame:
        frame: Frame = await read_frame(self.process.reader)
        self.log.append(frame)
        return frame

    async def start(self, ref: str, files: dict[str, str], input: JsonValue = None, **more: Any) -> Frame:
        frame: Frame = {"input": input, "seed": "seed", "now": self.clock, "scope": "", "path": [], **more}
        return await self.send(t="start", ref=ref, files=files, **frame)

    async def deliver(self, *items: Frame) -> Frame:
        """Items without a time get the next second."""
        stamped: list[Frame] = []
        for item in items:
            self.clock += 1
            stamped.append({"now": self.clock, **item})
        return await self.send(t="deliver", items=stamped)


@asynccontextmanager
async def rehearse(zygote: Zygote) -> AsyncIterator[Rehearsal]:
    """A fresh program process for one program."""
    process = await zygote.spawn()
    try:
        yield Rehearsal(process)
    finally:
        await process.kill()


async def run_local(
    zygote: Zygote, ref: str, files: dict[str, str], input: JsonValue = None, *, answer: Answer, together: bool = False
) -> tuple[Frame, list[Frame]]:
    """Runs a program to its end: requests are answered in order, one delivery at a time (``together``: all that are open).

    Time skips: when only sleeps are left, the one that is due first is delivered. Returns the last frame (``done`` or
    ``failed``) and all requests.
    """
    async with rehearse(zygote) as rehearsal:
        stage = _Stage(rehearsal, answer)
        frame = await rehearsal.start(ref, files, input)
        while frame["t"] == "batch":
            stage.take(frame)
            frame = await rehearsal.deliver(*stage.next(together))
        stage.take(frame)
        return frame, stage.requests


class _Stage:
    """Open requests of a rehearsed program."""

    def __init__(self, rehearsal: Rehearsal, answer: Answer) -> None:
        self.requests: list[Frame] = []
        self._rehearsal = rehearsal
        self._answer = answer
        self._ready: dict[int, Frame] = {}
        self._sleeping: dict[int, float] = {}

    def take(self, frame: Frame) -> None:
        for request in frame.get("requests", ()):
            self.requests.append(request)
            self._open(request)
        for cancel in frame.get("cancels", ()):
            self._ready.pop(cancel[0], None)
            self._sleeping.pop(cancel[0], None)

    def _open(self, request: Frame) -> None:
        no = request["no"]
        if request["kind"] == "sleep":
            self._sleeping[no] = self._rehearsal.clock + request["input"]["seconds"]
            return
        try:
            value = self._answer(request)
        except CapatazError as error:
            self._ready[no] = {"no": no, "error": error.to_json()}
            return
        if value is not LATER:
            self._ready[no] = {"no": no, "ok": value}

    def next(self, together: bool) -> list[Frame]:
        if self._ready:
            numbers = list(self._ready) if together else list(self._ready)[:1]
            return [self._ready.pop(no) for no in numbers]
        if not self._sleeping:
            raise AssertionError(f"the program waits, and nothing is answered: {self.requests[-5:]}")
        no = min(self._sleeping, key=lambda n: self._sleeping[n])
        due = self._sleeping.pop(no)
        self._rehearsal.clock = max(self._rehearsal.clock, due)
        return [{"no": no, "ok": None, "now": self._rehearsal.clock}]


def outcome(frame: Frame) -> JsonValue:
    """The result of a ``done`` frame. Raises the error of a ``failed`` one."""
    if frame["t"] == "failed":
        raise error_from_json(frame["error"])
    return frame["result"]
