"""Tool calls of a turn: order, bad requests, stuck agents, replay after a crash, cancellation."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents_kit import DONE, ListClient, calls, is_well_formed, ports_on, run, say, tool_results

from capataz.contracts.errors import AgentStuck, ForbiddenAccess, NotFound, ResourceLimit, SandboxFailed
from capataz.testing.fake_ports import Crash, FakePorts
from capataz.testing.fake_session import FakeSession


async def test_writers_in_call_order_reads_between_submit_last(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    client = ListClient(
        calls(
            DONE,
            ("read_file", {"path": "a"}),
            ("run_command", {"command": "sleep 0.1; echo one > a"}),
            ("run_command", {"command": "cat a; echo two > a"}),
            ("read_file", {"path": "a"}),
            ("list_directory", {}),
        )
    )
    outcome = await run(client, ports)
    results = tool_results(outcome.messages)
    assert "accepted" in results[0]
    assert "does not exist" in results[1]
    assert "one" in results[3]
    assert "two" in results[4] and results[5] == "a"
    assert [(c[1], c[2], c[4]) for c in ports.tool_calls] == [
        (1, "read_file", False), (2, "run_command", True), (3, "run_command", True), (4, "read_file", False), (5, "list_directory", False),
    ]
    assert is_well_formed(outcome.messages)


async def test_read_agents_do_not_write(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    outcome = await run(ListClient(calls(("run_command", {"command": "true"}), ("write_file", {"path": "a", "content": ""})), DONE), ports, type="read")
    assert ports.tool_calls[0][4] is False
    assert "no tool write_file" in tool_results(outcome.messages)[1]
    assert not (tmp_path / "w/a").exists()


@pytest.mark.parametrize(
    "request_",
    [
        ("nonsense", {}),
        ("report_progress", "{not json"),
        ("report_progress", "[1]"),
        ("report_progress", '"text"'),
        ("report_progress", '{"message": NaN}'),
        ("report_progress", {"message": "x", "more": 1}),
        ("report_progress", {}),
        ("report_progress", ""),
        ("read_file", {"path": "a", "offset": -1}),
        ("submit", "{"),
    ],
)
async def test_bad_requests_are_answered_and_do_not_poison(request_: tuple[str, Any]) -> None:
    client = ListClient(request_, DONE)
    await run(client)
    answer = tool_results(client.requests[1])[0]
    assert answer.startswith("error: ") and len(answer) <= 2_000 and "\n" not in answer
    assert is_well_formed(client.requests[1])
    for message in client.requests[1]:
        for call in message.get("tool_calls") or []:
            assert isinstance(__import__("json").loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": [None, {"id": 5, "function": None}]},
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "report_progress", "arguments": {"message": "a dict"}}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "parts"}], "tool_calls": [{"id": "", "function": {"name": "", "arguments": None}}]},
        {"role": "assistant", "content": "lone \ud800 surrogate and \0", "tool_calls": [{"id": "y", "function": {"name": "report_progress", "arguments": '{"message": "\\ud800\\u0000"}'}}]},
        {"role": "tool", "tool_call_id": "z", "content": "not an assistant"},
        {"role": "assistant", "tool_calls": "what"},
    ],
)
async def test_odd_messages(message: dict[str, Any]) -> None:
    client = ListClient(message, DONE)
    outcome = await run(client)
    assert outcome.output and is_well_formed(outcome.messages)
    assert all(m["role"] in ("system", "user", "assistant", "tool") for m in outcome.messages)


async def test_repeated_ids_are_made_unique(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    twice = calls(("run_command", {"command": "echo A"}), ("run_command", {"command": "echo B"}), ids=["same", "same"])
    client = ListClient(twice, calls(("run_command", {"command": "echo C"}), ids=["same"]), DONE)
    outcome = await run(client, ports)
    assert is_well_formed(outcome.messages)
    assert [r.split("\n")[-1] for r in tool_results(outcome.messages)[:3]] == ["A", "B", "C"]
    assert outcome.messages[2]["tool_calls"][0]["id"] == "same"


async def test_extra_keys_of_a_message_come_back_verbatim() -> None:
    extra = {"reasoning_content": "hm", "signature": {"a": [1]}}
    client = ListClient({**calls(("report_progress", {"message": "x"})), **extra}, DONE)
    await run(client)
    assert extra.items() <= client.requests[1][2].items()


# ---- stuck and refused ---------------------------------------------------------------------------


async def test_fourth_identical_failure_is_stuck(tmp_path: Path) -> None:
    client = ListClient(("run_command", {"command": "exit 3"}))
    with pytest.raises(AgentStuck, match="run_command"):
        await run(client, ports_on(tmp_path / "w"))
    assert len(client.requests) == 4
    assert [m["role"] for m in client.requests[2]].count("user") == 1
    assert client.requests[3][-1]["role"] == "user" and "three times" in client.requests[3][-1]["content"]


async def test_a_changed_file_in_between_starts_again(tmp_path: Path) -> None:
    failing = ("run_command", {"command": "exit 3"})
    turns: list[Any] = []
    for i in range(5):
        turns += [failing, ("write_file", {"path": "a", "content": str(i)})]
    client = ListClient(*turns, DONE)
    assert (await run(client, ports_on(tmp_path / "w"))).output


async def test_files_that_the_failing_command_writes_are_no_change_in_between(tmp_path: Path) -> None:
    client = ListClient(("run_command", {"command": "date +%N >> log; exit 1"}))
    with pytest.raises(AgentStuck):
        await run(client, ports_on(tmp_path / "w"))


async def test_other_arguments_and_successes_are_not_stuck(tmp_path: Path) -> None:
    turns = [("run_command", {"command": f"exit {i}"}) for i in range(1, 9)] + [("run_command", {"command": "true"})] * 8
    assert (await run(ListClient(*turns, DONE), ports_on(tmp_path / "w"))).output


async def test_bad_json_again_and_again_is_stuck() -> None:
    with pytest.raises(AgentStuck):
        await run(ListClient(("report_progress", "{")))


async def test_equal_calls_of_one_turn_count_once(tmp_path: Path) -> None:
    client = ListClient(calls(*[("run_command", {"command": "exit 1"})] * 5), DONE)
    assert (await run(client, ports_on(tmp_path / "w"))).output


async def test_third_refused_path_ends_the_agent(tmp_path: Path) -> None:
    turns = [("read_file", {"path": "/etc/passwd"}), ("read_file", {"path": "../x"}), ("write_file", {"path": "b", "content": ""})]
    client = ListClient(*turns, DONE)
    with pytest.raises(ForbiddenAccess):
        await run(client, ports_on(tmp_path / "w"), write_globs=("a",))
    assert len(client.requests) == 3


async def test_third_resource_kill_ends_the_agent(tmp_path: Path) -> None:
    class Hungry(FakeSession):
        def _result(self, *args: Any) -> Any:
            import dataclasses

            return dataclasses.replace(super()._result(*args), reason="memory", exit_code=-1)

    (tmp_path / "w").mkdir()
    client = ListClient(*[("run_command", {"command": f": {i}"}) for i in range(3)], DONE)
    with pytest.raises(ResourceLimit):
        await run(client, FakePorts(session_=Hungry(tmp_path / "w")))
    assert "more memory than allowed" in tool_results(client.requests[1])[0]


async def test_a_broken_sandbox_is_never_a_tools_answer(tmp_path: Path) -> None:
    class Broken(FakeSession):
        async def run(self, *args: Any, **kwargs: Any) -> Any:
            raise SandboxFailed("the helper died")

    with pytest.raises(SandboxFailed):
        await run(ListClient(("run_command", {"command": "ls"}), DONE), FakePorts(session_=Broken(tmp_path)))


# ---- durability ----------------------------------------------------------------------------------


async def test_replay_at_every_crash_point_gives_the_same(tmp_path: Path) -> None:
    turns = [
        calls(("run_command", {"command": "echo x >> log"}), ("read_file", {"path": "log"}), ("list_directory", {})),
        say("thinking aloud"),
        calls(("write_file", {"path": "b", "content": "b"}), ("nonsense", {})),
        DONE,
    ]
    steps = ["whole", *range(9)]
    seen: list[Any] = []
    for step in steps:
        root = tmp_path / f"w{step}"
        crash_after = None if step == "whole" else step
        ports = ports_on(root, crash_after=crash_after, steer={2: ["hurry"]})
        asked: list[int] = []

        def client(asked: list[int] = asked) -> ListClient:
            made = ListClient(lambda messages, info: (asked.append(info.turn), turns[info.turn])[1])
            return made

        try:
            outcome = await run(client(), ports)
        except Crash:
            again = ports_on(root, journal=ports.journal, steer={2: ["hurry"]})
            outcome = await run(client(), again)
        assert sorted(asked) == [0, 1, 2, 3], step
        assert (root / "log").read_text() == "x\n", step
        seen.append((outcome.output, outcome.turns, outcome.messages))
    assert all(s == seen[0] for s in seen)


async def test_cancel_kills_the_command_at_once(tmp_path: Path) -> None:
    ports = ports_on(tmp_path / "w")
    work = asyncio.ensure_future(run(ListClient(("run_command", {"command": "echo $$ > pid; sleep 60"}), DONE), ports))
    for _ in range(500):
        if (tmp_path / "w/pid").exists() and (tmp_path / "w/pid").read_text():
            break
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(asyncio.gather(work)), 5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "w/pid").read_text()), 0)


async def test_one_failing_read_cancels_its_siblings(tmp_path: Path) -> None:
    ended: list[str] = []

    class Files:
        async def stat(self, path: bytes) -> Any:
            if path == b"bad":
                raise SandboxFailed("gone")
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(path.decode())

    session = FakeSession(tmp_path)
    session.files = Files()  # type: ignore[assignment]
    with pytest.raises(SandboxFailed):
        await run(ListClient(calls(("read_file", {"path": "a"}), ("read_file", {"path": "bad"}), ("read_file", {"path": "b"}))), FakePorts(session_=session))
    assert ended == ["a", "b"]


async def test_an_answer_that_was_cut_off_is_told_so() -> None:
    class Cut(ListClient):
        async def reply(self, **kwargs: Any) -> Any:
            reply = await super().reply(**kwargs)
            return reply if kwargs["call"].turn else replace(reply, finish="length")

    client = Cut(("report_progress", '{"message": "unfinis'), DONE)
    await run(client)
    assert "cut at 8192 tokens" in tool_results(client.requests[1])[0]


async def test_many_reads_at_once_are_bounded(tmp_path: Path) -> None:
    running = most = 0

    class Files:
        async def stat(self, path: bytes) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            raise NotFound("none")

    session = FakeSession(tmp_path)
    session.files = Files()  # type: ignore[assignment]
    await run(ListClient(calls(*[("read_file", {"path": str(i)}) for i in range(50)]), DONE), FakePorts(session_=session))
    assert most == 8
