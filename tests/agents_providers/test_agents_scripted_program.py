"""A scripted model behind the proxy: it drives a real program as it drives an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_ports import FakePorts, task
from test_agents_programs import SCHEMA, installed

from capataz.agents.command.harness import command_harness
from capataz.agents.models import ModelsConfig
from capataz.contracts.sandbox import Mount, SandboxSpec, Session, WorkspaceMount
from capataz.sandbox.bubblewrap import BubblewrapSandbox

pytestmark = [pytest.mark.registry, pytest.mark.slow]

SCRIPT = """
def respond(call):
    if call.turn == 0 and call.attempt == 0:
        return fail(status=429, retry_after=0)
    if call.turn == 0:
        assert "bash" in call.tools and call.agent == "worker:a"
        return tool("bash", command="sed -i s/old/new/ hello.txt")
    assert call.messages[-1]["role"] == "tool"
    return say('{"ok": true}').with_usage(50, 5)
"""


async def test_a_script_drives_a_real_program(tmp_path: Path) -> None:
    prefix = installed("pi")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "hello.txt").write_text("old\n")
    (tmp_path / "script.py").write_text(SCRIPT)

    async def start(forwards: Mapping[int, Path], read_only: tuple[Mount, ...]) -> Session:
        return await BubblewrapSandbox(tmp_path).start(SandboxSpec(workspace=WorkspaceMount(upper=workspace), forwards=forwards, read_only=read_only))

    ports = FakePorts(start)
    models = ModelsConfig()
    harness = command_harness("pi", models, {"pi": {"install": str(prefix)}})
    try:
        outcome = await harness.run(task(model=models.resolve(f"scripted:{tmp_path}/script.py"), output_schema=SCHEMA), ports)
    finally:
        await ports.close()
    assert outcome.output == {"ok": True} and outcome.turns == 2 and harness.name == "command:pi"
    assert (workspace / "hello.txt").read_text() == "new\n"
    assert (ports.usage.input_tokens, ports.usage.output_tokens) == (1050, 105)
    assert [e["attempt"] for e in ports.events if e["type"] == "model.failed"] == [0]
