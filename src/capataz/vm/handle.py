"""Handles: spawned work that a program awaits, steers or cancels."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import EffectCancelled
from capataz.vm.runtime import Effect, current
from capataz.vm.sites import call_site

if TYPE_CHECKING:
    import asyncio

T_co = TypeVar("T_co", covariant=True)


class Handle(Generic[T_co]):
    """Spawned work. ``await handle`` (or ``handle.result()``) gives its typed result or raises its error.

    Waiting may be cancelled or time out without ending the work; ``cancel`` ends it. A program's end waits for work that is
    no ``daemon`` and raises the error of work that nobody awaited.
    """

    def __init__(self, effect: Effect, decode: Callable[[JsonValue], T_co], *, name: str, daemon: bool) -> None:
        self.name = name
        self.daemon = daemon
        self._effect = effect
        self._decode = decode
        self._awaited = False
        self._cancel_reason: str | None = None
        effect.add_done_callback(_retrieve)

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<Handle {self.name!r} {'done' if self.done() else 'running'}>"

    def done(self) -> bool:
        """Whether it has ended, as far as this program has been told."""
        return self._effect.done()

    async def result(self) -> T_co:
        """Its result. Raises its error; ``EffectCancelled`` when it was cancelled."""
        self._awaited = True
        await self._settled()
        if self._effect.cancelled():
            raise EffectCancelled(self._cancel_reason or f"{self.name or 'the work'} was cancelled")
        return self._decode(self._effect.result())

    async def notify(self, text: str) -> None:
        """A steering message: the agent sees it before its next model call, exactly once."""
        await self._control("notify", call_site(2), text=text)

    async def pause(self) -> None:
        """Stops it at its next safe point until ``resume``."""
        await self._control("pause", call_site(2))

    async def resume(self) -> None:
        await self._control("resume", call_site(2))

    async def status(self) -> str:
        """``queued``, ``running``, ``waiting`` or ``finished``, as recorded at this moment."""
        answer = await self._control("status", call_site(2))
        return str(answer["state"]) if isinstance(answer, dict) else str(answer)

    async def cancel(self, reason: str = "") -> None:
        """Ends it with all that it started; harmless when it has ended. ``result()`` then raises ``EffectCancelled``."""
        self._awaited = True
        self.abandon(reason or "cancelled by the program")

    # ---- for the runtime -----------------------------------------------------------------------

    def abandon(self, reason: str) -> None:
        """Cancels without waiting."""
        if not self._effect.done():
            self._cancel_reason = reason
            self._effect.cancel(reason)

    async def settle(self) -> None:
        """Waits for its end, whatever it is."""
        await self._settled()

    @property
    def effect(self) -> Effect:
        return self._effect

    def unseen_error(self) -> BaseException | None:
        """Its error when nobody awaited it; a cancellation is none."""
        if self._awaited or not self._effect.done() or self._effect.cancelled():
            return None
        error = self._effect.exception()
        return None if isinstance(error, EffectCancelled) else error

    async def _settled(self) -> None:
        """Waits on a future of its own, so that a cancelled waiter leaves the work alone."""
        if self._effect.done():
            return
        waiter: asyncio.Future[Any] = self._effect.get_loop().create_future()

        def wake(_: Any) -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._effect.add_done_callback(wake)
        try:
            await waiter
        finally:
            self._effect.remove_done_callback(wake)

    async def _control(self, op: str, site: str, *, text: str | None = None) -> JsonValue:
        return await current().request(
            "control", name=self.name, input={"target": self._effect.no, "op": op, "text": text}, site=site
        )


def _retrieve(effect: Any) -> None:
    """Keeps asyncio from logging an error that the program's end raises anyway."""
    if not effect.cancelled():
        effect.exception()
