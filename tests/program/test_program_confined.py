"""Programs that nobody vouches for run in a sandbox; endless code is stopped with its line, in any program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from program_kit import echo, files, play

from capataz.contracts.errors import ImpureProgram, ProgramFailed
from capataz.sandbox.confine import confine
from capataz.vm.rehearsal import outcome, rehearse, run_local
from capataz.vm.zygote import Confined, Zygote

LOOK = """
def look() -> dict[str, Any]:
    import os, socket
    try:
        socket.create_connection(("127.0.0.1", {port}), 1)
        reached = True
    except OSError:
        reached = False
    try:
        open("/usr/capataz-was-here", "w")
        wrote = True
    except OSError:
        wrote = False
    return {{"env": sorted(os.environ), "reached": reached, "wrote": wrote, "sees": os.path.exists({secret!r}), "processes": len([
        name for name in os.listdir("/proc") if name.isdigit()])}}

@program
async def main() -> dict[str, Any]:
    return await step("look", look)
"""


@pytest.fixture
def confined(tmp_path: Path) -> Any:
    def launch(arguments: list[str], env: Mapping[str, str]) -> tuple[list[str], list[int]]:
        found = confine([*arguments, "confined"], env, tmp_path)
        return found.argv, found.descriptors

    return Confined(launch)


@pytest.mark.slow
async def test_a_step_of_a_confined_program_finds_nothing_of_the_host(confined: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setenv("SOME_API_KEY", "secret")
    (tmp_path / "secret").write_text("secret", "utf-8")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    body = LOOK.format(port=server.sockets[0].getsockname()[1], secret=str(tmp_path / "secret"))
    async with rehearse(confined) as stage:
        batch = await stage.start("audit:main", files(body))
        seen = (await stage.send(t="fork", no=batch["requests"][0]["no"], env={"PATH": "/bin"}))["ok"]
    server.close()
    assert (seen["env"], seen["reached"], seen["wrote"], seen["sees"]) == (["PATH"], False, False, False)
    assert seen["processes"] <= 4


@pytest.mark.slow
@pytest.mark.parametrize("code", ["open('/etc/passwd')", "__import__('socket').socket()"])
async def test_a_confined_program_is_stopped_at_its_line(confined: Any, code: str) -> None:
    frame, _ = await run_local(confined, "audit:main", files(f"\n@program\nasync def main() -> None:\n    {code}\n"), answer=echo)
    with pytest.raises(ImpureProgram, match=r"^audit\.py:10: "):
        outcome(frame)


@pytest.mark.slow
async def test_a_confined_program_that_takes_too_much_memory_fails(confined: Any) -> None:
    frame, _ = await run_local(
        confined, "audit:main", files("\n@program\nasync def main() -> int:\n    return len(bytearray(3 << 30))\n"), answer=echo
    )
    with pytest.raises(ProgramFailed, match=r"^audit\.py:10: .*MemoryError"):
        outcome(frame)


@pytest.mark.slow
async def test_a_program_that_swallows_everything_is_stopped_with_its_line(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> None:
        await run("a", prompt="x")
        while True:
            try:
                sum(range(100))
            except BaseException:
                pass
    """
    async with rehearse(zygote) as stage:
        batch = await stage.start("audit:main", files(body), busy_s=0.2)
        result = {"output": None, "text": "x", "turns": 1, "usage": {}, "transcript": None}
        frame = await stage.deliver({"no": batch["requests"][0]["no"], "ok": result})
    with pytest.raises(ProgramFailed, match=r"^audit\.py:1[1-5]: it computed for 0\.2 s"):
        outcome(frame)
    assert frame["error"]["details"]["type"] == "EndlessLoop"


@pytest.mark.slow
async def test_code_that_never_comes_back_is_killed(zygote: Zygote) -> None:
    import asyncio

    body = "\n@program\nasync def main() -> int:\n    return sum(range(10 ** 13))\n"
    with pytest.raises(asyncio.IncompleteReadError):
        async with rehearse(zygote) as stage:
            await stage.start("audit:main", files(body), busy_s=0.1)


async def test_a_long_program_that_awaits_is_left_alone(zygote: Zygote) -> None:
    body = """
    @program
    async def main() -> int:
        for _ in range(20):
            await sleep(1)
        return 1
    """
    assert await play(zygote, body) == 1
