"""States in the hands of agents: grants, rules, the gate of owners, and each edit once across crashes."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import IllegalStateEdit, NotFound
from capataz.contracts.harness import AgentOutcome, AgentPorts, AgentTask, ModelReply, StateView, ToolReply
from capataz.contracts.journal import StateAddress, Usage
from capataz.testing.lab import Lab, open_lab

OWNERS = f"{Path(__file__).parent / 'programs' / 'owners.py'}:owners"
Behave = Callable[["Hand"], Awaitable[JsonValue]]


class Hand:
    """An agent's hand on its states: every call is a journaled tool call of its own turn."""

    def __init__(self, task: AgentTask, ports: AgentPorts) -> None:
        self.task = task
        self._ports = ports
        self._turns = itertools.count()

    async def think(self) -> int:
        turn = next(self._turns)

        async def perform() -> ModelReply:
            return ModelReply(response="on", usage=Usage())

        await self._ports.model_call(turn=turn, request={"turn": turn, "agent": self.task.name}, estimate=Usage(), perform=perform)
        return turn

    async def read(self, name: str) -> StateView:
        return await self._call("state_read", {"name": name}, lambda: self._ports.state_read(name))

    async def edit(self, name: str, patch: JsonValue, version: int) -> StateView | str:
        """The state after it, or why it was refused."""
        arguments = {"name": name, "patch": patch, "version": version}
        return await self._call("state_edit", arguments, lambda: self._ports.state_edit(name, patch=patch, version=version))

    async def _call(self, tool: str, arguments: JsonValue, work: Callable[[], Awaitable[StateView]]) -> Any:
        turn = await self.think()
        views: list[StateView] = []

        async def perform() -> ToolReply:
            try:
                view = await work()
            except (IllegalStateEdit, NotFound) as error:
                return ToolReply(content=error.message, failed=True)
            return ToolReply(content=f"{view.version}", summary=repr(view.value))

        reply = await self._ports.tool_call(turn=turn, position=0, name=tool, arguments=arguments, writes=False, perform=perform)
        views.append(StateView(version=int(reply.content), value=eval(reply.summary))) if not reply.failed else None
        return views[0] if views else reply.content

    async def submit(self, value: JsonValue) -> str | None:
        return await self._ports.accept(turn=await self.think(), value=value)


class HandHarness:
    name = "hand"

    def __init__(self, behave: Behave) -> None:
        self._behave = behave
        self.calls: list[tuple[str, str, int]] = []

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        output = await self._behave(Hand(task, ports))
        return AgentOutcome(text=str(output), output=output, turns=1, messages=[])


async def work(hand: Hand) -> JsonValue:
    """Writers add their name; the owner submits too early, then mends the state."""
    if hand.task.name.endswith("writer"):
        while True:
            seen = await hand.read("plan")
            after = await hand.edit("plan", {"items": [*seen.value["items"], hand.task.prompt]}, seen.version)
            if isinstance(after, StateView):
                return hand.task.prompt
    early = await hand.submit({"when": "early"})
    seen = await hand.read("plan")
    illegal = await hand.edit("plan", {"items": ["x" * 30]}, seen.version)
    unknown = await hand.edit("plan", {"itms": []}, seen.version)
    outdated = await hand.edit("plan", {"phase": "ready"}, 1)
    await hand.edit("plan", {"phase": "ready"}, seen.version)
    back = await hand.edit("plan", {"phase": "draft"}, seen.version + 1)
    late = await hand.submit({"when": "late"})
    return {"early": str(early), "illegal": str(illegal), "unknown": str(unknown), "outdated": str(outdated), "back": str(back), "late": str(late)}


EXPECTED = {
    "items": ["a", "b", "program"], "phase": "ready",
    "owner": {
        "early": "state plan is not complete: the phase is not ready; mend it with state_edit, then end",
        "illegal": "state plan: no valid Plan: items: Value error, items are at most 20 characters",
        "unknown": "state plan has no field itms",
        "outdated": "state plan is at version 3 or later, not 1: read it again, then edit what it says now",
        "back": "state plan: phase may not go from ready to draft; it may go to nothing",
        "late": "None",
    },
}  # fmt: skip


def equip(lab: Lab) -> None:
    lab.harness = HandHarness(work)  # type: ignore[assignment]


async def check(lab: Lab, run_id: str, where: object) -> None:
    """Every edit took effect once and was told once."""
    history = await lab.journal.state_history(StateAddress(reach="run", owner=run_id, name="plan"))
    assert [record.version for record in history] == [1, 2, 3, 4], where
    told = sorted(e.data["version"] for e in await lab.journal.events(run_id) if e.type == "state.changed")
    assert told == [1, 2, 3, 4], where


async def test_agents_read_edit_and_own_states() -> None:
    async with open_lab(lambda call: "") as lab:
        equip(lab)
        run = await lab.run(OWNERS)
        assert run.result == EXPECTED, run.reason
        await check(lab, run.run_id, "")
        agents = [row for row in await lab.journal.effects(run.run_id) if row.kind == "agent"]
    owner = next(row for row in agents if row.name == "owner")
    assert [s["name"] for s in owner.input["writes"]] == ["plan"], "owning includes writing"


async def sweep(stride: int) -> int:
    crashes, number = 0, 1
    async with open_lab(lambda call: "") as lab:
        equip(lab)
        while True:
            run_id = await lab.start(OWNERS)
            where = await lab.crash(run_id, number)
            if where is None:
                return crashes
            crashes += 1
            for again in (2, 7):
                crashes += await lab.crash(run_id, again) is not None
            run = await lab.drive(run_id)
            assert run.result == EXPECTED, (number, where, run.reason)
            await check(lab, run_id, (number, where))
            number += stride


async def test_killed_anywhere_each_edit_of_an_agent_happens_once() -> None:
    assert await sweep(stride=9) > 5


@pytest.mark.sweep
async def test_killed_at_every_point_each_edit_of_an_agent_happens_once() -> None:
    assert await sweep(stride=1) > 100


GRANTS = {
    "two of one name": ('reads=[state("x", Plan), state("x", Plan, reach="project")]', "two are named x"),
    "no state": ("reads=[Plan()]", "take states"),
    "another harness": ('owns=[plan], harness="command:x"', "no state tools"),
}


@pytest.mark.parametrize("wrong", GRANTS)
async def test_wrong_grants_are_named(tmp_path: Path, wrong: str) -> None:
    given, message = GRANTS[wrong]
    file = tmp_path / "wrong.py"
    file.write_text(
        "from pydantic import BaseModel\nfrom capataz import program, run, state\n\nclass Plan(BaseModel):\n    n: int = 0\n\n"
        f"plan = state('plan', Plan)\n\n@program\nasync def main() -> None:\n    await run('a', prompt='a', {given})\n"
    )
    async with open_lab(lambda call: "") as lab:
        run = await lab.run(f"{file}:main")
    assert run.state == "failed" and message in run.reason["message"], run.reason


async def test_an_agent_sees_only_what_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "only.py"
    file.write_text(
        "from pydantic import BaseModel\nfrom capataz import program, run, state\n\nclass Plan(BaseModel):\n    n: int = 0\n\n"
        "plan = state('plan', Plan)\nhidden = state('hidden', Plan)\n\n@program\nasync def main() -> list[str]:\n"
        "    return await run('reader', prompt='a', reads=[plan], output=list[str])\n"
    )

    async def behave(hand: Hand) -> JsonValue:
        return {"value": [str(await hand.read("hidden")), str(await hand.edit("plan", {"n": 1}, 0)), str(await hand.read("plan"))]}

    async with open_lab(lambda call: "") as lab:
        lab.harness = HandHarness(behave)  # type: ignore[assignment]
        run = await lab.run(f"{file}:main")
    assert run.result == [
        "there is no state hidden; you have plan", "state plan may only be read by this agent", "StateView(version=0, value={'n': 0})"
    ], run.reason  # fmt: skip
