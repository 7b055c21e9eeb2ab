"""The ``command`` harness: a whole coding-agent program as one agent.

The program runs inside the agent's sandbox session; its files are the result, its last message or a JSON file the output.
One run of it is one journaled tool call (so a finished run is never repeated and the files after it are recorded), each of
its model calls a journaled model call: a run that a crash cut off starts again on the files it started from, and is
answered from the journal as far as it asks the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capataz.agents import prompts
from capataz.agents.command.http import UnixServer
from capataz.agents.command.launch import Launch, Launched
from capataz.agents.command.programs import CommandSpec, command_spec
from capataz.agents.command.proxy import ModelProxy
from capataz.agents.command.shown import Shown
from capataz.agents.model_client import ModelClient
from capataz.agents.models import ModelsConfig
from capataz.agents.tools.submit import Output, output_of
from capataz.contracts.canonical import JsonValue, canonical_text
from capataz.contracts.clock import Clock, SystemClock
from capataz.contracts.errors import AgentFailed, DeadlineExceeded, OutputInvalid, ResourceLimit
from capataz.contracts.harness import AgentOutcome, AgentPorts, AgentTask, ToolReply
from capataz.contracts.masking import Masker, one_line

MAX_RUNS = 3                                   # the first, and again for an invalid or a refused output
_ANSWER_FILE = "/tmp/capataz/answer.json"


@dataclass(frozen=True, slots=True)
class _Ran:
    """What the journal keeps of one run of the program."""

    text: str
    answer: str                                # content of the JSON file; "" without one
    calls: int

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "answer": self.answer, "calls": self.calls}


class CommandHarness:
    """``models`` gives the client of a resolved model id. The harness's name is ``command:NAME``."""

    def __init__(
        self, spec: CommandSpec, models: Callable[[str], ModelClient], *, clock: Clock | None = None, masker: Masker | None = None
    ) -> None:
        self.name = f"command:{spec.name}"
        self._spec = spec
        self._models = models
        self._clock = clock or SystemClock()
        self._masker = masker or Masker()

    def identity(self) -> JsonValue:
        """What of the program is part of an agent's key."""
        return self._spec.identity()

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        """Errors as ``contracts.harness.Harness.run``; ``AgentFailed`` when the program exits with another code than 0."""
        # One folder for all runs of the program: the session's forward leads to one path. Short: a socket's has 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="cpz-"))
        try:
            return await self._runs(task, ports, folder / "models.sock")
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _runs(self, task: AgentTask, ports: AgentPorts, socket: Path) -> AgentOutcome:
        output = output_of(task.output_schema) if task.output_schema is not None else None
        deadline = self._clock.now() + task.limits.wall_s if task.limits.wall_s else None
        first = _prompt(task, output)
        prompt, messages, calls = first, list[JsonValue](), 0
        for number in range(MAX_RUNS):
            ran = await self._journaled(task, ports, prompt, number, socket, deadline)
            calls += ran.calls
            messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": ran.text}]
            value, problem = _value(output, ran)
            invalid = problem is not None
            if problem is None:
                problem = await ports.accept(turn=number, value=value)
            if problem is None:
                text = ran.text or (canonical_text(value) if output is not None else "")
                return AgentOutcome(text=text, output=value if output is not None else None, turns=calls, messages=messages)
            if invalid and number > 0:
                raise OutputInvalid(f"{task.name}: {problem}")
            prompt = f"{first}\n\nYour work so far is in place. Its result was refused: {problem}\nMend that and give the whole result again."
        raise OutputInvalid(f"{task.name}: the result was refused {MAX_RUNS} times")

    async def _journaled(self, task: AgentTask, ports: AgentPorts, prompt: str, number: int, socket: Path, deadline: float | None) -> _Ran:
        async def perform() -> ToolReply:
            ran = await self._perform(task, ports, prompt, socket, deadline)
            summary = one_line(ran.text, 200) or f"{self._spec.name} ended"
            return ToolReply(content=json.dumps(ran.to_json(), ensure_ascii=False), summary=summary)

        reply = await ports.tool_call(
            turn=number, position=0, name=self.name, arguments={"prompt": prompt, "program": self.identity()},
            writes=task.type == "general", perform=perform,
        )  # fmt: skip
        return _Ran(**json.loads(reply.content))

    # ---- one run of the program ------------------------------------------------------------------

    async def _perform(self, task: AgentTask, ports: AgentPorts, prompt: str, socket: Path, deadline: float | None) -> _Ran:
        proxy = ModelProxy(task, ports, self._models(task.model), clock=self._clock, deadline=deadline, masker=self._masker)
        try:
            async with UnixServer(proxy, socket):
                launched = await self._supervised(task, ports, prompt, proxy, socket, deadline)
        finally:
            await proxy.close()
        await self._keep(ports, proxy)
        return self._ended(task, launched, proxy.calls)

    async def _supervised(
        self, task: AgentTask, ports: AgentPorts, prompt: str, proxy: ModelProxy, socket: Path, deadline: float | None
    ) -> Launched:
        """The program's end, or the error of a model call that ends the agent: then the program is killed."""
        port = random.Random(f"{task.run_id}/{task.key}").randrange(20_000, 60_000)
        session = await ports.session(forwards={port: socket}, read_only=self._spec.mounts)
        launch = Launch(self._spec, session, model=task.model, port=port, answer_file=_ANSWER_FILE, timeout_s=self._time_left(deadline))
        shown = Shown(lambda text: ports.emit("command.output", text=self._masker.text(text)))
        work = asyncio.ensure_future(launch.run(prompt, shown.add))
        try:
            await asyncio.wait({work, proxy.ended}, return_when=asyncio.FIRST_COMPLETED)
            if proxy.ended.done():
                raise proxy.ended.result()
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            shown.end()

    def _time_left(self, deadline: float | None) -> float:
        if deadline is None:
            return self._spec.timeout_s
        return max(1.0, min(self._spec.timeout_s, deadline - self._clock.now()))

    async def _keep(self, ports: AgentPorts, proxy: ModelProxy) -> None:
        if proxy.conversation:
            data = canonical_text(proxy.conversation).encode()
            await ports.store(data, name=f"conversation of {self._spec.name}", media_type="application/json")

    def _ended(self, task: AgentTask, launched: Launched, calls: int) -> _Ran:
        result = launched.result
        if result.reason == "timeout":
            raise DeadlineExceeded(f"{task.name}: {self._spec.name} did not end within {result.duration_s:.0f} s")
        if result.reason in ("memory", "pids", "disk", "output"):
            raise ResourceLimit(f"{task.name}: {self._spec.name} was stopped at its limit of {result.reason}")
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip() or result.stdout.decode("utf-8", "replace").strip()
            last = one_line(self._masker.text(said[-2000:].rpartition("\n")[2] or said), 300)
            hint = "; is it installed where the sandbox sees it ([commands] install)?" if result.exit_code in (126, 127) else ""
            raise AgentFailed(f"{task.name}: {self._spec.name} exited with {result.exit_code}: {last}{hint}", exit_code=result.exit_code)
        return _Ran(text=launched.message, answer=launched.answer, calls=calls)


def _prompt(task: AgentTask, output: Output | None) -> str:
    parts = [prompts.first_message(task)]
    if task.write_globs is not None:
        parts.append(f"You may change only these files: {', '.join(task.write_globs) or 'none'}")
    if output is not None:
        schema = json.dumps(output.schema, ensure_ascii=False)
        parts.append(
            f"When the work is done, give its result as one JSON value that is valid by this JSON schema:\n{schema}\n"
            f"Write it into the file {_ANSWER_FILE}, or print it alone as your very last message."
        )
    return "\n\n".join(parts)


def _value(output: Output | None, ran: _Ran) -> tuple[JsonValue, str | None]:
    """The program's result and what is wrong with it."""
    if output is None:
        return ran.text, None
    found = [value for text in (ran.answer, ran.text) if (value := json_in(text)) is not None]
    if not found:
        return None, "there was no JSON in the last message and none in the file"
    fields = {"value": found[0]} if output.wrapped else found[0]
    if not isinstance(fields, dict):
        return None, "the result must be a JSON object"
    return found[0], output.problems(fields)


def json_in(text: str) -> JsonValue:
    """The last JSON value of a message: all of it, a fenced block, or what stands at its end. None: there is none."""
    stripped = text.strip()
    if not stripped:
        return None
    fences = stripped.split("```")
    blocks = [block.partition("\n")[2] if block[:1].isalpha() else block for block in fences[1::2]]
    for candidate in (stripped, *reversed(blocks)):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    decoder = json.JSONDecoder()
    for start in (i for i, c in enumerate(stripped) if c in "{["):
        try:
            value, end = decoder.raw_decode(stripped, start)
        except ValueError:
            continue
        if not stripped[end:].strip():
            return value
    return None


def command_harness(name: str, models: ModelsConfig, tables: Mapping[str, Any] | None = None, clock: Clock | None = None) -> CommandHarness:
    """The harness ``command:NAME``; ``tables``: ``[commands]`` of the configuration. Raises ``UsageError``."""
    return CommandHarness(command_spec(name, tables or {}), models.client, clock=clock, masker=models.masker)
