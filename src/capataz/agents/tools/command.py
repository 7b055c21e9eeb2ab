"""``run_command``: a shell command in the sandbox, its output capped, the whole of it kept in the blob store."""

from __future__ import annotations

import contextlib
from pathlib import Path

from capataz.agents.tools.bench import Bench
from capataz.agents.tools.errors import ToolError
from capataz.agents.tools.paths import relative
from capataz.contracts.harness import ToolReply
from capataz.contracts.sandbox import WORKSPACE, CommandResult, Session

OUTPUT_LIMIT = 16 << 10                        # bytes of each stream that the model sees
SPOOL_LIMIT = 16 << 20                         # bytes of each stream that are kept
_EVENT_BYTES = 4 << 10
_EVENTS = 64                                   # command.output events of one command; the rest is in the stored output
_WHY = {
    "timeout": "killed: it took longer than {limit:g} s",
    "memory": "killed: it used more memory than allowed",
    "pids": "killed: it started more processes than allowed",
    "disk": "killed: it wrote more than allowed",
    "output": "killed: it printed more than allowed",
    "killed": "killed",
}


async def run_command(bench: Bench, *, command: str, timeout_s: float = 120, cwd: object = ".") -> ToolReply:
    folder = relative(cwd)
    if not command.strip() or "\0" in command:
        raise ToolError("command is empty" if not command.strip() else "command holds a NUL byte")
    session = await bench.session()
    limit = min(timeout_s, bench.command_timeout_s) if bench.command_timeout_s else timeout_s
    result = await session.run(
        (await _shell(bench, session), "-c", command),
        cwd=WORKSPACE if folder == b"." else f"{WORKSPACE}/{folder.decode('utf-8', 'surrogateescape')}",
        timeout_s=limit,
        output_limit=OUTPUT_LIMIT,
        spool_limit=SPOOL_LIMIT,
        on_output=_reporter(bench),
    )
    stored = await _keep(bench, result)
    resource = result.reason in ("memory", "pids", "disk", "output")
    return ToolReply(
        content=_answer(result, limit, stored),
        failed=result.exit_code != 0,
        refused="resource" if resource else None,
        summary=f"exit {result.exit_code}" if result.reason == "exit" else result.reason,
        artifacts=tuple(uri for _, uri in stored),
    )


async def _shell(bench: Bench, session: Session) -> str:
    known = bench.shells.get(id(session))
    if known is None:
        found = await session.run(("bash", "-c", ":"), timeout_s=20, output_limit=256)
        known = bench.shells[id(session)] = "bash" if found.exit_code == 0 else "sh"
    return known


def _reporter(bench: Bench):
    left = _EVENTS

    def report(chunk: bytes) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            bench.ports.emit("command.output", agent=bench.agent, text=clean(chunk[:_EVENT_BYTES].decode("utf-8", "replace")))

    return report


def clean(text: str) -> str:
    """Without NUL, which neither PostgreSQL nor every provider takes."""
    return text.replace("\0", "\\x00")


async def _keep(bench: Bench, result: CommandResult) -> list[tuple[str, str]]:
    """Stores what was cut and removes the spool files."""
    stored: list[tuple[str, str]] = []
    try:
        for name, spool, shown in (("stdout", result.full_stdout, result.stdout_total), ("stderr", result.full_stderr, result.stderr_total)):
            if spool is not None and shown > OUTPUT_LIMIT:
                data = spool.read_bytes()
                stored.append((name, await bench.ports.store(data, name=f"{name}.txt", media_type="text/plain")))
    finally:
        for spool in (result.full_stdout, result.full_stderr):
            _remove(spool)
    return stored


def _remove(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def _answer(result: CommandResult, limit: float, stored: list[tuple[str, str]]) -> str:
    if result.reason == "exit":
        head = f"exit code {result.exit_code}"
    else:
        head = _WHY[result.reason].format(limit=limit)
    parts = [head]
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        if data:
            parts.append(f"{name}:\n{clean(data.decode('utf-8', 'replace')).rstrip(chr(10))}")
    if not result.stdout and not result.stderr:
        parts.append("(no output)")
    parts += [f"[{name} was cut; all of it (up to {SPOOL_LIMIT >> 20} MiB) is kept as {uri}; to see more, print less: use head, tail or grep]" for name, uri in stored]
    return "\n".join(parts)
