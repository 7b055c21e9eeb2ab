"""``report_progress`` and ``ask_human``."""

from __future__ import annotations

from capataz.agents.history import clean_json, clean_text
from capataz.agents.tools.bench import Bench
from capataz.contracts.harness import ToolReply


async def report_progress(bench: Bench, *, message: str) -> ToolReply:
    bench.ports.emit("program.checkpoint", message=clean_text(message)[:2_000], data={"agent": bench.agent})
    return ToolReply(content="noted", summary=message[:200])


async def ask_human(bench: Bench, *, question: str, options: list[str] | None = None) -> ToolReply:
    answer = await bench.ports.ask(clean_text(question), clean_json(options))
    return ToolReply(content=clean_text(answer), summary=question[:200])
