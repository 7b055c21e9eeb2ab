"""``state``: a persistent, typed namespace that programs and agents share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Literal, TypeVar

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import IllegalStateEdit, UsageError
from capataz.vm.runtime import current
from capataz.vm.sites import call_site
from capataz.vm.staterules import Rules

M = TypeVar("M")
Reach = Literal["run", "project"]


class State(Generic[M]):
    """A state by name. It is plain data: two with the same name and reach are the same state.

    Every write is a compare-and-swap on a version, validated by the model (its validators, and the ``transitions`` that it
    declares) before it is stored; an illegal one raises ``IllegalStateEdit`` and stores nothing. What was read and written is
    recorded: a resumed run reads the same again, and a write happens once, also when its worker is killed in the middle.
    """

    def __init__(self, name: str, model: type[M], *, reach: Reach, version: int) -> None:
        self.name = name
        self.model = model
        self.reach: Reach = reach
        self.version = version
        self.rules: Rules[M] = Rules(name, model, version)

    def __repr__(self) -> str:
        return f"<State {self.name!r} of {getattr(self.model, '__name__', self.model)}, {self.reach}>"

    async def get(self) -> M:
        """The present value; before the first write the model's default. Raises ``NotFound`` when it has none."""
        return self.rules.read(await self._read(call_site(2)))

    async def set(self, value: M) -> None:
        """Replaces the value, whatever it is by then."""
        await self._change(lambda old: self.rules.write(old, value), call_site(2))

    async def update(self, fn: Callable[[M], M]) -> M:
        """Replaces the value by ``fn(value)`` and returns it. ``fn`` must be pure: it is called again when another wrote meanwhile."""
        return await self._change(lambda old: self.rules.write(old, _returned(fn, self._needed(old))), call_site(2))

    async def transition(self, field: str, frm: Any, to: Any) -> M:
        """Moves one field from ``frm`` to ``to`` and returns the value. Raises ``IllegalStateEdit`` unless it is at ``frm``."""
        return await self._change(lambda old: self.rules.move(self._needed(old), field, frm, to), call_site(2))

    async def changes(self) -> AsyncIterator[M]:
        """Every version that is written from now on, in order, none left out. Waiting for one parks the run."""
        site = call_site(2)
        version = (await self._read(site))["version"]
        while True:
            for record in await self._next(version, site):
                version = record["version"]
                yield self.rules.read(record)

    async def until(self, pred: Callable[[M], bool]) -> M:
        """The first value, from the present one on, that ``pred`` (pure) holds for. Waiting for it parks the run."""
        site = call_site(2)
        records = [await self._read(site)]
        while True:
            for record in records:
                value = self.rules.present(record)
                if value is not None and pred(value):
                    return value
            records = await self._next(records[-1]["version"], site)

    # ---- effects -------------------------------------------------------------------------------

    async def _read(self, site: str) -> dict[str, JsonValue]:
        return await self._request({"op": "read"}, site)

    async def _next(self, after: int, site: str) -> list[dict[str, JsonValue]]:
        return await self._request({"op": "wait", "after": after}, site)

    async def _change(self, make: Callable[[M | None], JsonValue], site: str) -> M:
        """Tasks of one program take turns, so only agents and other programs can come in between."""
        async with _turns(self.reach, self.name):
            while True:
                record = await self._read(site)
                value = make(self.rules.present(record))
                write = {"op": "write", "version": record["version"], "value": value, "model_version": self.version}
                written = await self._request(write, site)
                if written is not None:
                    return self.rules.read({**written, "value": value, "model_version": self.version})

    async def _request(self, input: dict[str, JsonValue], site: str) -> Any:
        return await current().request("state", name=self.name, input={**input, "reach": self.reach}, site=site)

    def _needed(self, old: M | None) -> M:
        return old if old is not None else self.rules.read({"version": 0})


def state(name: str, model: type[M], *, reach: Reach = "run", version: int = 1) -> State[M]:
    """Declares a state: ``findings = state("findings", Findings)``.

    ``reach="run"``: it lives and ends with the run, children included. ``"project"``: it persists across the runs of a project,
    which is the run's ``project`` option, else its repository, else the folder that it was started in. ``version`` is the
    model's: raise it when the meaning of stored values changes and give the model an ``@migrate`` method for older ones.

    The model may declare rules: ``transitions: ClassVar[Transitions]``, and ``complete(self)``, which returns True, or False, or
    text that says what is missing. It gates the end of an agent that owns the state (``run(..., owns=[findings])``).
    """
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError("state() needs a name")
    if reach not in ("run", "project"):
        raise UsageError(f"state(reach={reach!r}): write run or project")
    if not isinstance(version, int) or version < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"state(version={version!r}): write a whole number, one or more")
    return State(name, model, reach=reach, version=version)


def _turns(reach: str, name: str) -> asyncio.Lock:
    locks = current().locks
    return locks.setdefault((reach, name), asyncio.Lock())


def _returned(fn: Callable[[M], M], old: M) -> M:
    new = fn(old)
    if new is None or asyncio.iscoroutine(new):
        if asyncio.iscoroutine(new):
            new.close()
        raise IllegalStateEdit("the function given to update() must return the new value, and wait for nothing")
    return new
