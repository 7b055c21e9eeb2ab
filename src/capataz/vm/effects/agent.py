"""Agents: a harness owns the conversation; the kernel journals every model and tool call of it (``vm.agent_ports``)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import JsonValue
from capataz.contracts.coding import WorkspaceRef
from capataz.contracts.errors import CapatazError, UnknownPrice
from capataz.contracts.harness import AgentLimits, AgentOutcome, AgentTask
from capataz.contracts.journal import Batch, Usage
from capataz.vm.agent_ports import JournaledPorts
from capataz.vm.agent_states import granted_states, granted_tools
from capataz.vm.agent_tools import own_tools
from capataz.vm.booking import Booking
from capataz.vm.committer import Part
from capataz.vm.effect import Completion, Done, Effect
from capataz.vm.keys import agent_name

if TYPE_CHECKING:
    from capataz.vm.run import Run

GRAPH = "langgraph"


def identity(run: Run, input: Any) -> JsonValue:
    """Prompt, data, resolved model, output schema, tools, reads and writes, and the workspace's tree at its start."""
    harness = input.get("harness") or "agno"
    added = {
        "model": _model(run, input),
        "tools": run.ports.agents.identity(
            type=input["type"], tools=_names(input), output_schema=input.get("output_schema"), harness=harness
        ),
    }
    workspace = input.get("workspace")
    if workspace is not None:
        added["workspace_tree"] = run.trees.get(workspace["workspace_id"], workspace["tree"])
    return {**input, **added}


def _model(run: Run, input: Any) -> str:
    if input.get("harness") == GRAPH:
        return GRAPH  # its nodes call what they call
    try:
        return run.ports.agents.resolve(input.get("model"), run.options)
    except CapatazError:
        return str(input.get("model"))  # refused, with the reason, when it is performed


def _names(input: Any) -> tuple[str, ...] | None:
    tools = input.get("tools")
    return None if tools is None else tuple(tools)


def _workspace(effect: Effect) -> WorkspaceRef | None:
    given = effect.input.get("workspace")
    return None if given is None else WorkspaceRef.model_validate(given)


def at_request(run: Run, effect: Effect) -> Part:
    started = {"agent": agent_name(effect.scope, effect.name), "model": _model(run, effect.input), "type": effect.input["type"]}
    return Part(events=(("agent.started", effect.key, started),))


def at_completion(run: Run, completion: Completion) -> Part:
    effect = completion.effect
    result = completion.done.result or {}
    data = {
        "agent": agent_name(effect.scope, effect.name), "status": completion.status,
        "reason": completion.error.code if completion.error is not None else None,
        "turns": result.get("turns", completion.error.details.get("turns", 0) if completion.error is not None else 0),
        "usage": result.get("usage", {}),
    }
    return Part(events=(("agent.ended", effect.key, data),))


def _servers(effect: Effect) -> tuple[dict[str, Any], ...]:
    """MCP servers, each with the time that a call may take."""
    timeouts = {given["name"]: given["timeout_s"] for given in effect.args.get("mcp_tools") or ()}
    return tuple({**server, "timeout_s": timeouts[server["tools"][0]]} for server in effect.input.get("mcp") or ())


def _task(run: Run, effect: Effect, model: str) -> AgentTask:
    given, args = effect.input, effect.args
    workspace = _workspace(effect)
    limits = AgentLimits(
        max_turns=args.get("max_turns") or run.options.get("max_turns") or AgentLimits().max_turns,
        command_timeout_s=run.options.get("command_timeout_s") or AgentLimits().command_timeout_s,
    )
    scoped = workspace is not None and given["type"] == "general"
    return AgentTask(
        run_id=run.run_id, key=effect.key, name=agent_name(effect.scope, effect.name), type=given["type"], prompt=given["prompt"],
        data=given.get("data"), model=model, output_schema=given.get("output_schema"), tools=_names(given), limits=limits,
        write_globs=tuple(workspace.write_globs) if scoped and workspace is not None else None,
        protected=tuple(workspace.protected) if workspace is not None else (),
        guidance=run.ports.agents.guidance(run.record), harness=given.get("harness") or "agno",
        granted=(*(args.get("granted") or ()), *granted_tools(effect)), states=granted_states(effect), own_tools=own_tools(effect), foreign=given.get("foreign"), mcp=_servers(effect),
    )


async def perform(run: Run, effect: Effect) -> Done:
    graph = effect.input.get("harness") == GRAPH
    model = GRAPH if graph else run.ports.agents.resolve(effect.input.get("model"), run.options)
    account = _account(run, effect)
    if not graph and run.accounts.has_money_limit(account) and run.prices.price(model, Usage(input_tokens=1, output_tokens=1)) is None:
        raise UnknownPrice(f"{model} has no known price and the run has a money budget; give a price in [models] or lift the budget")
    booking = Booking(run, effect, account)
    reserved = await booking.reserve(effect.key, Usage(agents=1))
    if reserved:
        run.committer.soon(Part(Batch(reserved=reserved)))
    try:
        done = await _in_workspace(run, effect, model, booking)
    except BaseException as error:
        await _agent_failed(run, effect, booking, error)
        raise
    settled = await booking.settle(effect.key, Usage(agents=1))
    return replace(done, parts=(Part(Batch(settled=settled)),)) if settled else done


async def _agent_failed(run: Run, effect: Effect, booking: Booking, error: BaseException) -> None:
    if isinstance(error, CapatazError) or effect.cancelled is not None:
        if settled := await booking.settle(effect.key, Usage(agents=1)):
            run.committer.soon(Part(Batch(settled=settled)))
    else:
        await booking.release(effect.key)  # the worker stops: whoever comes next reserves again


async def _in_workspace(run: Run, effect: Effect, model: str, booking: Booking) -> Done:
    workspace = _workspace(effect)
    if workspace is None:
        return await _converse(run, effect, model, booking)
    if effect.input["type"] != "general":
        await run.committer.durable(Part())
        return await _converse(run, effect, model, booking)
    async with run.writing(workspace.workspace_id):
        await run.committer.durable(Part())  # its files are for the holder of the lease alone: make sure of it, now
        return await _converse(run, effect, model, booking)


async def _converse(run: Run, effect: Effect, model: str, booking: Booking) -> Done:
    harness = run.ports.agents.harness(effect.input.get("harness") or "agno", run.options)
    started = time.monotonic()
    bench = await run.ports.agents.bench(
        run.record, _workspace(effect), agent=agent_name(effect.scope, effect.name), type=effect.input["type"],
        emit=lambda type, data: run.emit(type, effect.key, data),
    )
    ports = JournaledPorts(run, effect, bench, model=model, booking=booking)
    try:
        outcome = await harness.run(_task(run, effect, model), ports)
    except CapatazError as error:
        error.details.setdefault("turns", ports.turns)
        error.transcript = error.transcript or _transcript(run, effect)
        raise
    finally:
        await bench.close()
    usage = Usage(agents=1, sandbox_s=bench.sandbox_s, artifact_bytes=ports.artifact_bytes)
    return Done(_result(run, effect, outcome, ports, time.monotonic() - started), usage, tree=ports.tree)


def _account(run: Run, effect: Effect) -> str:
    """The account that the agent's calls are booked on: its own when it has limits, else its scope's."""
    limits = effect.args.get("budget")
    if not limits:
        return effect.scope
    own = f"{effect.scope}/" if effect.scope else ""
    account = f"{own}@{effect.name.replace('/', '_')}.{effect.identity.input_digest[:8]}.{effect.identity.ordinal}"
    run.open_account(account, limits)
    return account


def _result(run: Run, effect: Effect, outcome: AgentOutcome, ports: JournaledPorts, wall_s: float) -> JsonValue:
    return {
        "output": outcome.output, "text": outcome.text, "turns": outcome.turns,
        "usage": ports.usage.to_json(), "transcript": _transcript(run, effect), "wall_s": round(wall_s, 3),
    }


def _transcript(run: Run, effect: Effect) -> str:
    """Where the conversation can be read: the agent's own rows in the journal."""
    return f"journal:{run.run_id}/{effect.key}"
