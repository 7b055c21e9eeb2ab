"""Real coding-agent programs from their registry, in a real sandbox, driven by the scripted provider server.

They are installed once into a cache folder outside the repository. Without npm, node or the registry: skipped, and why.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_ports import FakePorts, task

from capataz.agents.command.harness import CommandHarness
from capataz.agents.command.programs import read_command
from capataz.agents.models import ModelsConfig
from capataz.contracts.harness import AgentLimits
from capataz.contracts.sandbox import Mount, SandboxSpec, Session, WorkspaceMount
from capataz.sandbox.bubblewrap import BubblewrapSandbox
from capataz.testing.provider_server import Call, ProviderRequest, ProviderServer, Reply

PACKAGES = {
    "pi": "@mariozechner/pi-coding-agent",
    "codex": "@openai/codex",
    "opencode": "opencode-ai",
    "claude": "@anthropic-ai/claude-code",
}
WIRES: dict[str, Any] = {"pi": "openai-chat", "opencode": "openai-chat", "codex": "openai-responses", "claude": "anthropic"}
SHELLS = ("bash", "Bash", "exec_command", "shell")
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
sweep = pytest.mark.sweep
pytestmark = [pytest.mark.registry, pytest.mark.slow]


def installed(name: str) -> Path:
    """The program's npm prefix; installed aside and renamed, so that a broken install is never taken for a whole one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capataz-tests" / name
    if (cache / "node_modules/.bin" / name).exists():
        return cache
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("npm and node are needed to install the program")
    aside = cache.with_name(f"{name}.{os.getpid()}")
    try:
        argv = ["npm", "install", "--prefix", str(aside), PACKAGES[name], "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode != 0:
            pytest.skip(f"{PACKAGES[name]} cannot be installed: {done.stderr.strip()[-200:]}")
        shutil.rmtree(cache, ignore_errors=True)
        aside.rename(cache)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{PACKAGES[name]} was not installed within 400 s")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return cache


def respond(request: ProviderRequest) -> Reply:
    """Edits the file through the program's own shell tool, then gives the output."""
    shell = next((t for t in request.tools if t in SHELLS), None)
    if shell is None:
        return Reply(text="A title")
    if request.turn == 0:
        command = "sed -i s/old/new/ hello.txt"
        return Reply(text="Editing.", calls=(Call(shell, {"cmd" if shell == "exec_command" else "command": command, "description": "edit"}),))
    return Reply(text='Done.\n\n```json\n{"ok": true}\n```')


@pytest.mark.parametrize("name", ["pi", pytest.param("codex", marks=sweep), pytest.param("opencode", marks=sweep), pytest.param("claude", marks=sweep)])
async def test_a_real_program_edits_a_file(name: str, tmp_path: Path, key: str) -> None:
    prefix = await asyncio.to_thread(installed, name)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "hello.txt").write_text("old\n")

    async def start(forwards: Mapping[int, Path], read_only: tuple[Mount, ...]) -> Session:
        return await BubblewrapSandbox(tmp_path).start(SandboxSpec(workspace=WorkspaceMount(upper=workspace), forwards=forwards, read_only=read_only))

    ports = FakePorts(start)
    async with ProviderServer(respond, keys={key}) as server:
        models = ModelsConfig({"own": {"base_url": server.base_url(WIRES[name]), "api": WIRES[name], "api_key_env": "TEST_KEY"}})
        harness = CommandHarness(read_command(name, {"install": str(prefix)}), models.client, masker=models.masker)
        limits = AgentLimits(wall_s=240)
        try:
            outcome = await harness.run(task(model="own/m1", output_schema=SCHEMA, limits=limits), ports)
        finally:
            await ports.close()
            await models.close()
    assert outcome.output == {"ok": True}
    assert (workspace / "hello.txt").read_text() == "new\n" and [p.name for p in workspace.iterdir()] == ["hello.txt"]
    assert ports.usage.model_calls == len(server.requests) >= 2 and ports.usage.input_tokens == 1000 * len(server.requests)
    assert {r.wire for r in server.requests} == {WIRES[name]} and {r.model for r in server.requests} == {"m1"}
    assert not server.unknown and not server.errors
