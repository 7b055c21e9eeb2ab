"""The agents' ``run_command`` in a running sandbox session, and the same command as a bare subprocess, in turns."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bench.contestants.talk import answer, config
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.command import run_command
from capataz.agents.tools.paths import WriteScope
from capataz.contracts.errors import SandboxUnavailable
from capataz.contracts.sandbox import SandboxSpec, Session
from capataz.sandbox import make_sandbox


class Ports:
    """Of an agent whose session runs already."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def session(self) -> Session:
        return self._session

    def emit(self, type: str, **data: Any) -> None:
        pass


async def bare() -> float:
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", "true", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == 0
    return (time.perf_counter() - started) * 1000


async def inside(bench: Bench) -> float:
    started = time.perf_counter()
    reply = await run_command(bench, command="true")
    assert not reply.failed, reply
    return (time.perf_counter() - started) * 1000


async def main(given: dict[str, Any]) -> None:
    sandbox = make_sandbox("bubblewrap", runtime_dir=Path(mkdtemp(prefix="capataz-bench-")))
    try:
        await sandbox.probe()
    except SandboxUnavailable as error:
        answer(missing=str(error))
        return
    started = time.perf_counter()
    session = await sandbox.start(SandboxSpec(workspace=None))
    start_ms = (time.perf_counter() - started) * 1000
    try:
        bench = Bench(Ports(session), WriteScope(None, ()), "bench", 60)  # type: ignore[arg-type]
        for _ in range(5):
            await bare()
            await inside(bench)
        pairs = [(await inside(bench), await bare()) for _ in range(given["repetitions"])]
    finally:
        await session.kill()
    answer(pairs=pairs, start_ms=start_ms)


if __name__ == "__main__":
    asyncio.run(main(config()))
