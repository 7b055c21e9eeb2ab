"""Answers in an order that a seed decides, so that a seed gives the same interleaving again."""

from __future__ import annotations

import asyncio
import inspect

from capataz.contracts.canonical import JsonValue, digest
from capataz.testing.fake_agents import Answer, FakeCall, Respond

QUIET_S = 0.001
TOGETHER = (1, 1, 2, 4)
"""How many calls are answered at once, so that completions share commits in some places and not in others."""


class Turns:
    """``Turns(seed, respond)`` is a respond function of its own: every call waits until nothing else is asked for, then those
    are answered whose turn the seed says it is."""

    def __init__(self, seed: int, respond: Respond) -> None:
        self._seed = seed
        self._respond = respond
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []
        self._arrived = 0
        self._server: asyncio.Task[None] | None = None

    async def __call__(self, call: FakeCall) -> Answer:
        turn = asyncio.get_running_loop().create_future()
        self._arrived += 1
        self._waiting.append((digest([self._seed, call.agent, call.prompt, call.turn]), self._arrived, turn))
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve())
        await turn
        answer = self._respond(call)
        value: JsonValue = await answer if inspect.isawaitable(answer) else answer
        return value

    async def _serve(self) -> None:
        while self._waiting:
            await self._quiet()
            self._waiting = sorted(entry for entry in self._waiting if not entry[2].done())  # some were cancelled
            if self._waiting:
                together = TOGETHER[int(self._waiting[0][0][-4:], 16) % len(TOGETHER)]
                for _, _, turn in self._waiting[:together]:
                    turn.set_result(None)
                del self._waiting[:together]

    async def _quiet(self) -> None:
        seen = -1
        while seen != self._arrived:
            seen = self._arrived
            await asyncio.sleep(QUIET_S)
