"""One start of a program inside a session: its files put down, its command line made, its last message read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capataz.agents.command.programs import DUMMY_KEY, CommandSpec
from capataz.agents.command.proxy import program_model
from capataz.contracts.errors import SandboxFailed
from capataz.contracts.sandbox import CommandResult, Session

_HOME = "/tmp/capataz/home"
_PROMPT_FILE = "/tmp/capataz/prompt.md"
_MESSAGE_FILE = "/tmp/capataz/message.txt"
_OUTPUT_LIMIT = 256 << 10
_FILE_LIMIT = 4 << 20
_PUT = 'mkdir -p "$(dirname "$1")" && cat > "$1"'


@dataclass(frozen=True, slots=True)
class Launched:
    """``message``: the program's last; ``answer``: the JSON file's content, "" without one."""

    result: CommandResult
    message: str
    answer: str


class Launch:
    def __init__(self, spec: CommandSpec, session: Session, *, model: str, port: int, answer_file: str, timeout_s: float) -> None:
        self._spec = spec
        self._session = session
        self._answer_file = answer_file
        self._timeout_s = timeout_s
        self._values = {
            "{model}": program_model(model), "{base_url}": f"http://127.0.0.1:{port}", "{key}": DUMMY_KEY,
            "{home}": _HOME, "{prompt_file}": _PROMPT_FILE, "{message_file}": _MESSAGE_FILE,
        }  # fmt: skip

    async def run(self, prompt: str, on_output: Callable[[bytes], Any]) -> Launched:
        await self._clean()
        await self._put(_PROMPT_FILE, prompt)
        for path, text in self._spec.files.items():
            await self._put(f"{_HOME}/{path}", self._filled(text))
        # The prompt is put in last: what it says is no placeholder.
        argv = tuple(self._filled(part).replace("{prompt}", prompt) for part in self._spec.argv)
        env = {"HOME": _HOME, **{k: self._filled(v) for k, v in self._spec.env.items()}}
        stdin = prompt.encode("utf-8", "replace") if self._spec.prompt == "stdin" else b""
        result = await self._session.run(
            argv, env=env, stdin=stdin, timeout_s=self._timeout_s, output_limit=_OUTPUT_LIMIT, on_output=on_output
        )
        message = await self._read(_MESSAGE_FILE) if self._spec.last_message == "file" else result.stdout.decode("utf-8", "replace")
        return Launched(result, message.strip(), await self._read(self._answer_file))

    def _filled(self, text: str) -> str:
        for name, value in self._values.items():
            text = text.replace(name, value)
        return text

    async def _clean(self) -> None:
        """An earlier run's message must not stand for this one's."""
        await self._session.run(["rm", "-f", _MESSAGE_FILE, self._answer_file], cwd="/")
        await self._session.run(["mkdir", "-p", _HOME], cwd="/")

    async def _put(self, path: str, text: str) -> None:
        result = await self._session.run(["sh", "-c", _PUT, "sh", path], cwd="/", stdin=text.encode("utf-8", "replace"))
        if result.exit_code != 0:
            raise SandboxFailed(f"{path} cannot be written inside the sandbox: {result.stderr.decode('utf-8', 'replace')}")

    async def _read(self, path: str) -> str:
        result = await self._session.run(["cat", path], cwd="/", timeout_s=10, output_limit=_FILE_LIMIT)
        return result.stdout.decode("utf-8", "replace") if result.exit_code == 0 and not result.truncated else ""
