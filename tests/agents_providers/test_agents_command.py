"""The command harness in a real sandbox, with a small program that talks to the proxy as any other would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_ports import FakePorts, task

from capataz.agents.command.harness import CommandHarness, json_in
from capataz.agents.command.programs import PRESETS, CommandSpec, command_spec, read_command
from capataz.agents.command.shown import MOST, Shown
from capataz.agents.model_client import ModelClient
from capataz.agents.models import ModelsConfig
from capataz.contracts.errors import AgentFailed, BudgetExhausted, DeadlineExceeded, OutputInvalid, UsageError
from capataz.contracts.harness import AgentLimits
from capataz.contracts.sandbox import Mount, SandboxSpec, Session, WorkspaceMount
from capataz.sandbox.bubblewrap import BubblewrapSandbox
from capataz.testing.provider_server import ProviderRequest, ProviderServer, Reply

pytestmark = pytest.mark.slow

# The program: asks the model until it says STOP, runs what it says, prints the last words.
PROGRAM = """
import json, os, subprocess, sys, urllib.request
base, prompt = sys.argv[1], sys.stdin.read()
messages = [{"role": "user", "content": prompt}]
while True:
    body = json.dumps({"model": "x", "messages": messages, "user": str(os.getpid())}).encode()
    request = urllib.request.Request(base + "/v1/chat/completions", body, {"Authorization": "Bearer " + os.environ["KEY"]})
    try:
        said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        print("refused", error.code, flush=True)
        subprocess.run(["sleep", "60"])
        sys.exit(9)
    messages.append({"role": "assistant", "content": said})
    if said.startswith("STOP"):
        print(said[5:])
        sys.exit(0)
    done = subprocess.run(said, shell=True, capture_output=True, text=True)
    messages.append({"role": "user", "content": done.stdout + done.stderr})
"""
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


@pytest.fixture
def spec() -> CommandSpec:
    return CommandSpec(name="small", argv=("python3", "{home}/program.py", "{base_url}"), files={"program.py": PROGRAM}, env={"KEY": "{key}"}, timeout_s=60)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path: Path, workspace: Path) -> Callable[..., Any]:
    box = BubblewrapSandbox(tmp_path)

    async def open_(forwards: Mapping[int, Path], read_only: tuple[Mount, ...]) -> Session:
        return await box.start(SandboxSpec(workspace=WorkspaceMount(upper=workspace), forwards=forwards, read_only=read_only))

    return open_


@pytest.fixture
async def ports(start: Callable[..., Any]) -> AsyncIterator[FakePorts]:
    made = FakePorts(start)
    yield made
    await made.close()


class Model:
    """Texts by turn of the conversation, through a real provider client."""

    def __init__(self, server: ProviderServer, key: str) -> None:
        self.config = ModelsConfig({"own": {"base_url": server.base_url("openai-chat"), "api_key_env": "TEST_KEY"}})
        self.key = key

    def __call__(self, model: str) -> ModelClient:
        return self.config.client(model)


def lines(*texts: str) -> Callable[[ProviderRequest], Reply]:
    return lambda request: Reply(text=texts[min(request.turn, len(texts) - 1)])


async def test_files_output_and_no_key_inside(spec: CommandSpec, ports: FakePorts, workspace: Path, key: str) -> None:
    look = "env; cat /proc/self/environ /proc/*/cmdline | tr '\\0' '\\n'; cat $HOME/* /workspace/* 2>/dev/null; ls -R /tmp"
    async with ProviderServer(lines("echo done > made.txt", look, 'STOP {"ok": true}'), keys={key}) as server:
        model = Model(server, key)
        harness = CommandHarness(spec, model, masker=model.config.masker)
        outcome = await harness.run(task(model="own/m", output_schema=SCHEMA), ports)
        await model.config.close()
    assert outcome.output == {"ok": True} and outcome.turns == 3 and (workspace / "made.txt").read_text() == "done\n"
    assert key not in server.requests[2].text and "capataz-inside-the-sandbox" in server.requests[2].text, "what was seen inside came back in the prompt"
    assert ports.usage.model_calls == 3 and ports.usage.input_tokens == 3000 and ports.programs == 1
    assert [e["text"] for e in ports.events if e["type"] == "command.output"] == ['{"ok": true}\n']
    assert "echo done" in ports.stored[0].decode()


async def test_a_finished_run_is_never_repeated(spec: CommandSpec, ports: FakePorts, key: str) -> None:
    async with ProviderServer(lines("true", "STOP all good")) as server:
        model = Model(server, key)
        first = await CommandHarness(spec, model).run(task(model="own/m"), ports)
        assert await CommandHarness(spec, model).run(task(model="own/m"), ports) == first
        await model.config.close()
    assert first.text == "all good" and first.output is None and ports.programs == 1 and len(server.requests) == 2


async def test_a_run_that_was_cut_off_is_answered_from_the_journal(spec: CommandSpec, ports: FakePorts, start: Any, key: str) -> None:
    reached = asyncio.Event()

    async def respond(request: ProviderRequest) -> Reply:
        if request.turn == 1 and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return lines("true", "true", "STOP end")(request)

    async with ProviderServer(respond) as server:
        model = Model(server, key)
        work = asyncio.create_task(CommandHarness(spec, model).run(task(model="own/m"), ports))
        await reached.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await ports.close()
        outcome = await CommandHarness(spec, model).run(task(model="own/m"), ports)
        await model.config.close()
    assert outcome.text == "end"
    assert [r.turn for r in server.requests] == [0, 1, 1, 2], "turn 0 was in the journal, the cut call is made again"


async def test_an_invalid_output_gets_one_more_run(spec: CommandSpec, ports: FakePorts, key: str) -> None:
    answers = ['STOP {"ok": "yes"}', 'STOP {"ok": true}']
    async with ProviderServer(lambda r: Reply(text=answers["refused" in r.text])) as server:
        model = Model(server, key)
        outcome = await CommandHarness(spec, model).run(task(model="own/m", output_schema=SCHEMA), ports)
        assert outcome.output == {"ok": True} and ports.programs == 2 and outcome.turns == 2
        answers[1] = answers[0]
        await ports.close()                    # another agent, another session
        with pytest.raises(OutputInvalid, match="ok"):
            await CommandHarness(spec, model).run(task(model="own/m", prompt="again", output_schema=SCHEMA), ports)
        await model.config.close()


async def test_a_refusal_of_the_program_that_asked_goes_back(spec: CommandSpec, ports: FakePorts, key: str) -> None:
    ports.refusals = ["the suite fails: test_x"]
    async with ProviderServer(lambda r: Reply(text="STOP second" if "test_x" in r.text else "STOP first")) as server:
        model = Model(server, key)
        assert (await CommandHarness(spec, model).run(task(model="own/m"), ports)).text == "second"
        await model.config.close()


async def test_a_json_file_is_an_output_too(spec: CommandSpec, ports: FakePorts, key: str) -> None:
    async with ProviderServer(lines('echo \'{"ok": false}\' > /tmp/capataz/answer.json', "STOP see the file")) as server:
        model = Model(server, key)
        outcome = await CommandHarness(spec, model).run(task(model="own/m", output_schema=SCHEMA), ports)
        await model.config.close()
    assert outcome.output == {"ok": False}


async def test_a_spent_budget_kills_the_program_at_once(spec: CommandSpec, ports: FakePorts, key: str) -> None:
    ports.max_calls = 1
    async with ProviderServer(lines("true")) as server:
        model = Model(server, key)
        with pytest.raises(BudgetExhausted):
            await asyncio.wait_for(CommandHarness(spec, model).run(task(model="own/m"), ports), 20)
        await model.config.close()
    session = await ports.session()
    left = await session.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert b"program.py" not in left.stdout


@pytest.mark.parametrize(
    ("argv", "error", "said"),
    [
        (("sh", "-c", "echo oops >&2; exit 3"), AgentFailed, "exited with 3: oops"),
        (("no-such-program",), AgentFailed, "exited with 127.*install"),
        (("sleep", "30"), DeadlineExceeded, "did not end"),
    ],
)
async def test_programs_that_fail(ports: FakePorts, argv: tuple[str, ...], error: type[Exception], said: str) -> None:
    limits = AgentLimits(wall_s=1.5)
    with pytest.raises(error, match=said) as caught:
        await CommandHarness(CommandSpec(name="bad", argv=argv), ModelsConfig().client).run(task(model="openai/m", limits=limits), ports)
    assert "\n" not in str(caught.value)


async def test_a_prompt_is_no_placeholder_and_no_option(ports: FakePorts) -> None:
    spec = CommandSpec(name="echo", argv=("printf", "%s", "{prompt}"), prompt="argument")
    outcome = await CommandHarness(spec, ModelsConfig().client).run(task(model="openai/m", prompt="$(id) {key} {home} 'ü'"), ports)
    assert outcome.text == "$(id) {key} {home} 'ü'"


def test_commands_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "node_modules/.bin").mkdir(parents=True)
    (tmp_path / "node_modules/.bin/pi").write_text("")
    spec = read_command("mine", {"preset": "pi", "install": str(tmp_path), "env": {"A": "1"}, "timeout": "5m"})
    assert spec.argv[0] == "/opt/mine/node_modules/.bin/pi" and spec.mounts == (Mount(tmp_path, "/opt/mine"),)
    assert spec.env["A"] == "1" and spec.env["PI_OFFLINE"] == "1" and spec.timeout_s == 300
    assert command_spec("codex", {}) is PRESETS["codex"]
    assert command_spec("own", {"own": {"argv": ["x"]}}).argv == ("x",)
    for name, table, said in [
        ("x", {}, "needs argv"),
        ("x", {"argv": "x"}, "list of texts"),
        ("x", {"argv": ["x"], "promt": "stdin"}, "did you mean prompt"),
        ("x", {"preset": "vim"}, "unknown preset"),
        ("x", {"argv": ["x"], "prompt": "argument"}, "must hold"),
        ("x", {"preset": "pi", "install": str(tmp_path / "no")}, "absolute path that exists"),
        ("x", {"preset": "codex", "install": str(tmp_path)}, "holds no codex"),
        ("x", 5, "must be a table"),
    ]:
        with pytest.raises(UsageError, match=said):
            read_command(name, table)
    with pytest.raises(UsageError, match="unknown command 'nope'"):
        command_spec("nope", {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Done.\n```json\n{"a": 1}\n```\nBye', {"a": 1}),
        ('First {"x": 2} then\n{"a": [1, {"b": 2}]}', {"a": [1, {"b": 2}]}),
        ("```\n[1]\n```", [1]),
        ("no json {at all", None),
        ("", None),
        ("{" * 5000, None),
    ],
)
def test_json_in_a_message(text: str, value: Any) -> None:
    assert json_in(text) == value


def test_output_is_shown_in_few_whole_pieces() -> None:
    seen: list[str] = []
    shown = Shown(seen.append)
    text = "".join(f"zeile {i} ü\n" for i in range(2000))
    for at in range(0, len(text.encode()), 7):
        shown.add(text.encode()[at : at + 7])
    shown.end()
    assert "".join(seen) == text and len(seen) < 20 and all(len(s.encode()) <= MOST for s in seen)
    seen.clear()
    shown = Shown(seen.append)
    for _ in range(3000):
        shown.add(b"x" * MOST)
    shown.end()
    assert len(seen) == 1000 and "not shown" in seen[-1]
    json.dumps(seen)
