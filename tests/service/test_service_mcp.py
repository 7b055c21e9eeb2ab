"""``capataz mcp``: an independent client, in this process, drives runs of a server in another one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

PROGRAM = '''from capataz import ask, program, receive, run


@program
async def talk(name: str) -> str:
    """Hears a message, asks a question, lets an agent speak."""
    first = await run("greeter", prompt=f"Greet {name}", type="reason")
    heard = await receive(str)
    answer = await ask("Send it?")
    return f"{first.text} / {heard} / {answer.value} by {answer.by}"
'''
SCRIPT = '''def respond(call):
    return say("Hello")
'''


@asynccontextmanager
async def client(home: Path, model: Path) -> AsyncIterator[Client]:
    env = {**os.environ, "CAPATAZ_HOME": str(home)}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "capataz.cli.main", "mcp", "--model", f"scripted:{model}"], env=env, cwd=str(home)
    )
    async with Client(server) as opened:
        yield opened


async def call(connected: Client, name: str, /, **given: Any) -> Any:
    result = await connected.call_tool(name, given)
    text = result.content[0].text  # type: ignore[union-attr]
    return text if result.is_error else json.loads(text)


async def until(connected: Client, run_id: str, wanted: Any) -> Any:
    seen = 0
    async with asyncio.timeout(60):
        while not wanted(found := await call(connected, "watch", run_id=run_id, after=seen, wait_s=5)):
            assert found["state"] not in ("failed", "cancelled"), found["reason"]
            seen = found["next"]
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "model.py").write_text(SCRIPT, "utf-8")
    return tmp_path / "home"


@pytest.mark.slow
async def test_an_independent_client_drives_a_whole_run(home: Path) -> None:
    async with client(home, home.parent / "model.py") as connected:
        names = {tool.name for tool in (await connected.list_tools()).tools}
        assert names >= {"list_programs", "list_runs", "check", "write_program", "start", "watch", "notify", "answer", "cancel", "fork"}
        faulty = await call(connected, "write_program", name="talk", source=PROGRAM.replace("await ask", "ask"))
        assert [error["code"] for error in faulty["check"]["errors"]][:1] == ["CPZ001"]
        assert "errors" in await call(connected, "start", program="talk", input="Ada")
        sound = await call(connected, "write_program", name="talk", source=PROGRAM)
        assert (sound["check"]["errors"], Path(sound["path"]).parent) == ([], home / "programs" / "written")
        assert "talk" in (await call(connected, "list_programs"))["written"]
        run_id = (await call(connected, "start", program="talk", input="Ada"))["run_id"]
        await until(connected, run_id, lambda found: found["state"] == "parked")
        await call(connected, "notify", run_id=run_id, text="be kind")
        asked = await until(connected, run_id, lambda found: found["asks"])
        await call(connected, "answer", ask_id=asked["asks"][0]["ask_id"], value="approve")
        ended = await until(connected, run_id, lambda found: found["state"] == "completed")
        assert ended["result"] == "Hello / be kind / approve by mcp"
        journal = json.loads((await connected.read_resource(f"run://{run_id}/journal")).contents[0].text)  # type: ignore[union-attr]
        greeter = next(row["key"] for row in journal if row["kind"] == "agent")
        assert "Greet Ada" in (await connected.read_resource(f"run://{run_id}/transcript")).contents[0].text  # type: ignore[union-attr]
        forked = (await call(connected, "fork", run_id=run_id, key=greeter))["run_id"]
        await until(connected, forked, lambda found: found["state"] == "parked")
        assert (await call(connected, "cancel", run_id=forked, reason="enough"))["state"] == "cancelled"
        assert {run["run_id"] for run in (await call(connected, "list_runs"))["runs"]} == {run_id, forked}


@pytest.mark.slow
async def test_bad_requests_are_one_line_and_harmless(home: Path) -> None:
    (home.parent / "other.py").write_text(PROGRAM, "utf-8")
    spin = "from capataz import program, step\n\n\ndef look() -> list[str]:\n    import os\n    return sorted(os.environ)\n\n\n@program\nasync def look_round() -> list[str]:\n    return await step('look', look)\n"
    async with client(home, home.parent / "model.py") as connected:
        for name, given in [
            ("start", {"program": str(home.parent / "other.py"), "input": "x"}), ("check", {"program": "../other"}),
            ("write_program", {"name": "../x", "source": ""}), ("watch", {"run_id": "nobody"}), ("answer", {"ask_id": "none", "value": "approve"}),
            ("start", {"program": "single", "model": "scripted:/x.py"}), ("start", {"program": "single", "budget_usd": "-1"}),
        ]:
            said = await call(connected, name, **given)
            assert isinstance(said, str) and "\n" not in said and "Traceback" not in said, (name, said)
        assert (await call(connected, "list_runs"))["runs"] == []
        await call(connected, "write_program", name="look_round", source=spin)
        run_id = (await call(connected, "start", program="look_round"))["run_id"]
        ended = await until(connected, run_id, lambda found: found["state"] == "completed")
        assert not any("CAPATAZ" in name or "KEY" in name for name in ended["result"])
        assert {"HOME", "PATH"} <= set(ended["result"])


@pytest.mark.slow
async def test_a_command_that_a_model_gives_to_a_bundled_program_stays_in_the_sandbox(home: Path) -> None:
    given = {"duty": "look", "status": f"echo seen; touch {home}/pwned", "every": "1s", "beats": 1}
    async with client(home, home.parent / "model.py") as connected:
        run_id = (await call(connected, "start", program="heartbeat", input=given))["run_id"]

        async def outputs() -> list[str]:
            rows = json.loads((await connected.read_resource(f"run://{run_id}/journal")).contents[0].text)  # type: ignore[union-attr]
            return [row["result"]["output"] for row in rows if row["kind"] == "step" and row["status"] == "ok"]

        seen = 0
        async with asyncio.timeout(30):
            while not (said := await outputs()):
                seen = (await call(connected, "watch", run_id=run_id, after=seen, wait_s=5))["next"]
        assert said[0].startswith("seen") and "cannot touch" in said[0]
        assert not (home / "pwned").exists()
