"""A compiled LangGraph graph of a program's own, one superstep at a time: each leg starts from the checkpoints of the last one.

The journal is the checkpointer: a leg's checkpoints are its result, so a graph goes on in another process where it stood.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command

from capataz.contracts.canonical import JsonValue, digest, to_json
from capataz.contracts.errors import UsageError
from capataz.contracts.foreign import ForeignAgent, ForeignTool

SUPERSTEP = "superstep"
_CONFIG: Any = {"configurable": {"thread_id": "capataz"}, "recursion_limit": 1_000}


def adapt(graph: Any) -> ForeignAgent:
    """Raises ``UsageError`` for a graph that is not compiled."""
    if not isinstance(graph, Pregel):
        raise UsageError(f"agent= takes a compiled graph: {type(graph).__name__}(...).compile()")
    shape = graph.get_graph().to_json()

    async def leg(given: Mapping[str, Any]) -> JsonValue:
        return await _leg(graph, given)

    told: dict[str, JsonValue] = {"graph": digest(to_json(shape)), "name": graph.name, "inputs": sorted(name for name in graph.channels if name.isidentifier() and not name.startswith("__"))}
    return ForeignAgent(
        harness="langgraph", told=told,
        tools=(ForeignTool(name=SUPERSTEP, description="one superstep of the graph", parameters={"type": "object"}, invoke=leg),),
    )


async def _leg(graph: Pregel[Any, Any, Any, Any], given: Mapping[str, Any]) -> JsonValue:
    """``given``: ``checkpoints`` of the leg before, and ``input`` (the first) or ``resume`` (answers by interrupt) or neither."""
    saver = InMemorySaver()
    if given.get("checkpoints"):
        _restore(saver, given["checkpoints"])
    ours = graph.copy(update={"checkpointer": saver})
    start: Any = given.get("input")
    if given.get("resume"):
        start = Command(resume=dict(given["resume"]))
    await ours.ainvoke(start, _CONFIG, interrupt_after="*", durability="sync")
    state = await ours.aget_state(_CONFIG, subgraphs=True)
    asks = [{"id": found.id, "value": to_json(found.value)} for found in state.interrupts]
    over = not state.next
    return {
        "checkpoints": _kept(saver), "interrupts": asks, "next": list(state.next), "values": to_json(_values(ours, state.values)) if over else None,
    }


def _values(graph: Pregel[Any, Any, Any, Any], values: Any) -> Any:
    """What the graph gives out, not all that it knows."""
    shown = graph.output_channels
    if isinstance(shown, str) or not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items() if name in shown}


def _kept(saver: InMemorySaver) -> str:
    plain = {
        "storage": {thread: {place: dict(found) for place, found in places.items()} for thread, places in saver.storage.items()},
        "writes": {place: dict(found) for place, found in saver.writes.items()},
        "blobs": dict(saver.blobs),
    }
    return base64.b64encode(pickle.dumps(plain, protocol=5)).decode()


def _restore(saver: InMemorySaver, kept: str) -> None:
    plain = _Plain(io.BytesIO(base64.b64decode(kept))).load()
    for thread, places in plain["storage"].items():
        for place, found in places.items():
            saver.storage[thread][place].update(found)
    for place, found in plain["writes"].items():
        saver.writes[place].update(found)
    saver.blobs.update(plain["blobs"])


class _Plain(pickle.Unpickler):
    """Checkpoints are text, numbers and bytes: nothing else is made of what the journal holds."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in a checkpoint")
