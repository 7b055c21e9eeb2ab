"""A process of its own for the command line on a fake app: ``cli_driver.py SCENE ARGS...``."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cli_fakes import RUN, FakeApp, FakeWiring, ask_record

from capataz.cli import bridge
from capataz.cli.entry import invoke
from capataz.contracts.journal import NewEvent, RunRecord


class Waiting(FakeApp):
    """Its drive ends at the next safe point after a drain, or (``stubborn``) never."""

    def __init__(self, *, stubborn: bool) -> None:
        super().__init__()
        self.stubborn = stubborn
        self.drained = asyncio.Event()

    async def drive(self, run_id: str, *, on_event: Any = None, ask: Any = None) -> RunRecord:
        print("driving", file=sys.stderr, flush=True)
        await (asyncio.Event() if self.stubborn else self.drained).wait()
        self.journal.runs[run_id] = replace(self.journal.runs[run_id], state="running")
        return self.journal.runs[run_id]

    def request_drain(self) -> None:
        self.drained.set()


class Asking(FakeApp):
    """Its drive asks the approval; what the person says ends the run."""

    async def drive(self, run_id: str, *, on_event: Any = None, ask: Any = None) -> RunRecord:
        on_event(NewEvent(seq=1, type="agent.started", at=1.0, effect=None, data={"agent": "planner", "model": "m", "type": "read"}))
        context = {"plan": {"reason": "why", "tasks": []}, "diff": {"uri": "blob:d", "files": []}, "candidate": {"sha": "c" * 40}}
        self.blobs.kept = {"blob:d": b"+the diff\x1b[31m\n"}
        self.journal.questions["a1"] = ask_record(context=context)
        value = await ask(self.journal.questions["a1"]) if ask else None
        end = {"approve": {"state": "completed", "outcome": "promoted"}, "decline": {"state": "completed", "outcome": "declined"}}
        self.journal.runs[run_id] = replace(self.journal.runs[run_id], **end.get(value, {"state": "parked"}))
        return self.journal.runs[run_id]


class Chatty(FakeApp):
    def __init__(self) -> None:
        super().__init__()
        self.journal.log = [NewEvent(seq=n, type="program.checkpoint", at=1.0, effect=None, data={"message": "é…" * 200}) for n in range(1, 900)]


SCENES = {
    "wait": lambda: Waiting(stubborn=False),
    "stubborn": lambda: Waiting(stubborn=True),
    "ask": Asking,
    "chatty": Chatty,
    "plain": FakeApp,
}

app = SCENES[sys.argv[1]]()
assert RUN in app.journal.runs
fake = FakeWiring(app)
bridge.wiring = lambda: fake  # type: ignore[assignment,return-value]
raise SystemExit(invoke(sys.argv[2:]))
