"""The metering proxy: a program's model calls become journaled, budgeted model calls of its agent.

Any model can stand behind it. One that speaks the program's language gets the request as it is (``Upstream``); for all
others, the scripted ones included, request and answer are translated. No key ever goes in: programs get a dummy.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from capataz.agents.command import answers
from capataz.agents.command.http import Handler, Request, Response
from capataz.agents.command.requests import Asked, Wire, identity, parse
from capataz.agents.command.upstream import Upstream, speaks
from capataz.agents.model_client import CallInfo, ClientReply, ModelClient, ProviderFailure
from capataz.agents.providers.client import ProviderClient
from capataz.agents.providers.loose import obj
from capataz.agents.retries import describe, reply_with_retries
from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.clock import Clock
from capataz.contracts.errors import BudgetExhausted, CapatazError, TurnsExhausted, UnknownPrice
from capataz.contracts.harness import AgentPorts, AgentTask, ModelReply
from capataz.contracts.journal import Usage
from capataz.contracts.masking import Masker
from capataz.contracts.signals import Signal

_ENDINGS: tuple[tuple[str, Wire], ...] = (("/chat/completions", "openai-chat"), ("/responses", "openai-responses"), ("/messages", "anthropic"))
_STREAMED = re.compile(rb'"stream"\s*:\s*true')
_CHARACTERS_A_TOKEN = 3                        # fewer than usual: this estimate is what a budget reserves


@dataclass(slots=True)
class _Call:
    work: asyncio.Task[ModelReply]
    delivered: bool = False


class ModelProxy(Handler):
    """``ended`` is set to the error or signal that ends the agent; ``calls`` counts the model calls so far.

    A program that asks the same again because it lost patience gets the answer that was on its way.
    """

    def __init__(self, task: AgentTask, ports: AgentPorts, client: ModelClient, *, clock: Clock, deadline: float | None, masker: Masker) -> None:
        self.ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.calls = 0
        self.conversation: list[JsonValue] = []
        self._task = task
        self._ports = ports
        self._client = client
        self._clock = clock
        self._deadline = deadline
        self._masker = masker
        self._asked: dict[str, list[_Call]] = {}
        self._answering: dict[int, _Call] = {}

    async def close(self) -> None:
        """Ends what is still on its way."""
        work = [call.work for calls in self._asked.values() for call in calls]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    # ---- HTTP ------------------------------------------------------------------------------------

    def pulse(self, request: Request) -> bytes | None:
        wire = _wire(request)
        return answers.pulse(wire) if wire is not None and _STREAMED.search(request.body) else None

    def delivered(self, request: Request) -> None:
        call = self._answering.pop(id(request), None)
        if call is not None:
            call.delivered = True

    async def answer(self, request: Request) -> Response:
        wire = _wire(request)
        if wire is not None:
            return await self._model(request, wire)
        if request.method in ("GET", "HEAD"):
            return _json(200, self._listing() if request.path.rstrip("/").endswith("/models") else {})
        if request.path.endswith("/count_tokens"):
            return _json(200, {"input_tokens": len(request.body) // _CHARACTERS_A_TOKEN})
        return _json(404, answers.error_of("openai-chat", 404, f"this proxy does not serve {request.path}", "not_found"))

    def _listing(self) -> dict[str, Any]:
        name = program_model(self._task.model)
        return {"object": "list", "data": [{"id": name, "object": "model", "type": "model", "display_name": name, "created": 0, "owned_by": "capataz"}], "has_more": False}

    async def _model(self, request: Request, wire: Wire) -> Response:
        try:
            body = obj(json.loads(request.body))
        except (ValueError, RecursionError):
            return _error(wire, 400, "the body is no JSON object", "invalid_request")
        asked = parse(wire, body)
        if self.ended.done():
            return self._refusal(wire, self.ended.result())
        try:
            reply = await self._reply(request, asked, body)
        except ProviderFailure as failure:     # of the kind "context": the program can shorten its conversation
            return _error(wire, 400, f"prompt is too long: context_length_exceeded ({describe(self._task.model, failure)})", "context_length_exceeded")
        except (CapatazError, Signal) as error:
            self._end(error)
            return self._refusal(wire, error)
        return self._delivery(asked, reply)

    def _end(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    def _refusal(self, wire: Wire, error: BaseException) -> Response:
        """Programs do not try again after these: the agent is over."""
        spent = isinstance(error, (BudgetExhausted, TurnsExhausted, UnknownPrice))
        status = 402 if spent else int(getattr(error, "details", {}).get("status") or 400)
        response = _error(wire, status, self._masker.text(str(error) or "the agent was stopped"), getattr(error, "code", "stopped"))
        return replace(response, headers={"x-should-retry": "false"})

    def _delivery(self, asked: Asked, reply: ModelReply) -> Response:
        recorded: Any = reply.response
        said = ClientReply(message=recorded["message"], usage=reply.usage, finish=recorded["finish"])
        if not asked.stream:
            return _json(200, answers.body_of(asked, said))
        raw = recorded.get("raw")
        stream = raw.encode() if raw else answers.stream_of(asked, said)
        return Response(200, stream, "text/event-stream; charset=utf-8")

    # ---- the call --------------------------------------------------------------------------------

    async def _reply(self, request: Request, asked: Asked, body: dict[str, Any]) -> ModelReply:
        question = digest({"wire": asked.wire, "body": identity(body)})
        calls = self._asked.setdefault(question, [])
        if not calls or calls[-1].delivered or calls[-1].work.cancelled():
            self._count()
            work = asyncio.create_task(self._journaled(request, asked, body, question, len(calls)))
            work.add_done_callback(_seen)
            calls.append(_Call(work))
        call = self._answering[id(request)] = calls[-1]
        return await asyncio.shield(call.work)

    def _count(self) -> None:
        most = self._task.limits.max_turns
        if most and self.calls >= most:
            raise TurnsExhausted(f"{self._task.name} used all {most} model calls")
        self.calls += 1

    async def _journaled(self, request: Request, asked: Asked, body: dict[str, Any], question: str, ordinal: int) -> ModelReply:
        limit = self._task.limits.max_output_tokens
        most = min(asked.max_output_tokens or limit, limit) if limit else asked.max_output_tokens or 8_192
        reply = await self._ports.model_call(
            turn=asked.turn,
            request={"model": self._task.model, "wire": asked.wire, "question": question, "ordinal": ordinal},
            estimate=Usage(input_tokens=len(request.body) // _CHARACTERS_A_TOKEN, output_tokens=most, model_calls=1),
            perform=lambda: self._perform(request, asked, body, most),
        )
        recorded: Any = reply.response
        self.conversation = [*asked.messages, recorded["message"]]
        return reply

    async def _perform(self, request: Request, asked: Asked, body: dict[str, Any], most: int) -> ModelReply:
        client = self._client
        if asked.stream and isinstance(client, ProviderClient) and speaks(client, asked.wire):
            client = Upstream(client, asked, body, request.headers, most)
        task = self._task
        said = await reply_with_retries(
            client, messages=asked.messages, tools=asked.tools, output_schema=task.output_schema, max_output_tokens=most,
            call=CallInfo(agent=task.name, turn=asked.turn, run_id=task.run_id, data=task.data, prompt=asked.prompt),
            emit=self._ports.emit, clock=self._clock, deadline=self._deadline,
        )  # fmt: skip
        response: dict[str, Any] = {"message": said.message, "finish": said.finish}
        if isinstance(client, Upstream):
            response["raw"] = client.raw.decode("utf-8", "replace")
        return ModelReply(response=response, usage=said.usage)


def program_model(model: str) -> str:
    """What a program calls the model: the provider's own id, by which some know its window and abilities."""
    return "scripted" if model.startswith("scripted:") else model.partition("/")[2]


def _seen(work: asyncio.Task[ModelReply]) -> None:
    """Its error is raised where it is awaited; nobody may be there any more."""
    if not work.cancelled():
        work.exception()


def _wire(request: Request) -> Wire | None:
    if request.method != "POST":
        return None
    return next((wire for ending, wire in _ENDINGS if request.path.endswith(ending)), None)


def _json(status: int, body: Any) -> Response:
    return Response(status, json.dumps(body, ensure_ascii=False).encode())


def _error(wire: Wire, status: int, message: str, code: str) -> Response:
    shaped = answers.error_of(wire, status, message, code)
    return replace(_json(status, shaped), late=answers.error_event(wire, shaped))
