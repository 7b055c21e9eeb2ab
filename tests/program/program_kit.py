"""Programs as text, and plain answers to their requests."""

from __future__ import annotations

import textwrap
from typing import Any

from capataz.vm.rehearsal import outcome, run_local
from capataz.vm.zygote import Zygote

HEAD = """
from __future__ import annotations
import asyncio
from typing import Any
from capataz import *
from capataz.contracts.errors import *
"""


def files(body: str, **more: str) -> dict[str, str]:
    text = HEAD + textwrap.dedent(body)
    return {"@entry": "audit:main", "audit.py": text, **{k.replace("__", "/") + ".py": v for k, v in more.items()}}


def echo(request: dict[str, Any]) -> Any:
    """Agents answer with their prompt, ``now`` with a fixed time, the rest with nothing."""
    if request["kind"] == "agent":
        output = None if request["args"]["text"] else request["input"]["data"]
        return {"output": output, "text": request["input"]["prompt"], "turns": 1, "usage": {}, "transcript": None}
    return 1_700_000_000.0 if request["kind"] == "now" else None


async def play(zygote: Zygote, body: str, input: Any = None, *, answer: Any = echo, together: bool = False) -> Any:
    """The result of a program; its error is raised."""
    frame, _ = await run_local(zygote, "audit:main", files(body), input, answer=answer, together=together)
    return outcome(frame)


async def trace(zygote: Zygote, body: str, input: Any = None, *, answer: Any = echo) -> list[str]:
    """What it asked for, in order: ``scope|kind:name:prompt``."""
    frame, requests = await run_local(zygote, "audit:main", files(body), input, answer=answer)
    outcome(frame)
    return [f"{r['scope']}|{r['kind']}:{r['name']}:{r['input'].get('prompt', '')}" for r in requests]
