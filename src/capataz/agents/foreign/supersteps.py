"""The ``langgraph`` harness: walks a graph of the program's own by supersteps and asks people what it interrupts for.

The graph itself runs in children of the program's process (``foreign.graph``); LangGraph is never imported here.
"""

from __future__ import annotations

import json
from typing import Any

from capataz.agents.history import clean_text
from capataz.contracts.canonical import JsonValue, canonical_text
from capataz.contracts.errors import AgentFailed, DeadlineExceeded, OutputInvalid, StepFailed, TurnsExhausted
from capataz.contracts.harness import AgentOutcome, AgentPorts, AgentTask, ToolReply

SUPERSTEP = "superstep"


class GraphHarness:
    """``max_turns`` counts supersteps."""

    name = "langgraph"

    async def run(self, task: AgentTask, ports: AgentPorts) -> AgentOutcome:
        """Raises ``AgentFailed`` for what a node raised, ``TurnsExhausted``, ``OutputInvalid``."""
        request: dict[str, JsonValue] = {"input": _input(task)}
        checkpoints: JsonValue = None
        turn = 0
        while True:
            if task.limits.max_turns and turn >= task.limits.max_turns:
                raise TurnsExhausted(f"{task.name} used all its {task.limits.max_turns} supersteps", turns=turn)
            leg = await self._leg(task, ports, turn, request, checkpoints)
            checkpoints = leg["checkpoints"]
            if leg["interrupts"]:
                request = {"resume": {found["id"]: await _answer(ports, turn, found) for found in leg["interrupts"]}}
            elif leg["next"]:
                request = {}
            else:
                break
            turn += 1
        return await self._outcome(task, ports, turn, leg["values"])

    async def _leg(self, task: AgentTask, ports: AgentPorts, turn: int, request: dict[str, JsonValue], checkpoints: JsonValue) -> dict[str, Any]:
        async def perform() -> ToolReply:
            done = await ports.own_tool(SUPERSTEP, {**request, "checkpoints": checkpoints})
            return ToolReply(content=json.dumps(done), summary=", ".join(done["next"]) or "end")

        try:
            # The checkpoints are no argument: they follow from the calls before, whose results the journal has.
            reply = await ports.tool_call(turn=turn, position=0, name=SUPERSTEP, arguments=request, writes=False, perform=perform)
        except (StepFailed, DeadlineExceeded) as error:
            raise AgentFailed(f"{task.name}: {error.message}", type=error.details.get("type"), turns=turn) from error
        return json.loads(reply.content)

    async def _outcome(self, task: AgentTask, ports: AgentPorts, turn: int, values: JsonValue) -> AgentOutcome:
        output = None
        if task.output_schema is not None:
            from capataz.agents.tools.submit import output_of

            wanted = output_of(task.output_schema)
            fields = _fields(values, task.output_schema)
            problem = wanted.problems(fields)
            if problem is not None:
                raise OutputInvalid(f"{task.name} ended with a state that is no valid output: {problem}")
            output = wanted.value(fields)
        text = _text(values)
        refused = await ports.accept(turn=turn, value=text if output is None else output)
        if refused is not None:
            raise OutputInvalid(f"{task.name}: {refused}")
        return AgentOutcome(text=text, output=output, turns=turn + 1, messages=[])


def _input(task: AgentTask) -> dict[str, JsonValue]:
    """The program's data, and the prompt where the graph has a place for it."""
    given: dict[str, JsonValue] = dict(task.data or {})
    places = (task.foreign or {}).get("inputs") or []
    if "messages" in places:
        given.setdefault("messages", [{"role": "user", "content": task.prompt}])
    elif "prompt" in places:
        given.setdefault("prompt", task.prompt)
    return given


async def _answer(ports: AgentPorts, turn: int, interrupt: dict[str, Any]) -> JsonValue:
    """What a node interrupts for, as a question: ``{"question": ..., "options": [...]}``, or any value, shown as it is."""
    value = interrupt["value"]
    known = value if isinstance(value, dict) else {}
    question = known.get("question") or (value if isinstance(value, str) else canonical_text(value))
    options = known.get("options")
    return await ports.ask(
        clean_text(str(question)), [str(option) for option in options] if isinstance(options, list) and options else None,
        place=f"t{turn}:{interrupt['id']}", context={name: shown for name, shown in known.items() if name not in ("question", "options")} or None,
    )


def _fields(values: JsonValue, schema: dict[str, Any]) -> dict[str, JsonValue]:
    """The part of the graph's values that the output asks for; all of them for one that is no object (its ``value``)."""
    wanted = schema.get("properties")
    if not isinstance(values, dict) or (wanted is not None and set(wanted) == {"value"} and "value" not in values):
        return {"value": values}
    return values if wanted is None else {name: value for name, value in values.items() if name in wanted}


def _text(values: JsonValue) -> str:
    messages = values.get("messages") if isinstance(values, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    return content if isinstance(content, str) else canonical_text(values)
