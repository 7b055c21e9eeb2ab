"""People: questions, notices, messages, published files."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from capataz.contracts.canonical import digest
from capataz.contracts.errors import AskExpired, DeadlineExceeded, UsageError
from capataz.contracts.journal import Batch, InboxItem, NewAsk, Usage
from capataz.vm.committer import Part
from capataz.vm.effect import Completion, Done, Effect

if TYPE_CHECKING:
    from capataz.vm.run import Run


# ---- ask ---------------------------------------------------------------------------------------


def ask_id(run: Run, key: str) -> str:
    """The same question has the same id at each replay, and in a later generation too unless it was closed meanwhile."""
    for generation in range(run.record.generation):
        known = run.asks.get(_ask_id(run, generation, key))
        if known is not None and known.closed is None:
            return known.ask_id
    return _ask_id(run, run.record.generation, key)


def _ask_id(run: Run, generation: int, key: str) -> str:
    return "a" + digest([run.run_id, generation, key])[:15]


def _expires(effect: Effect) -> float | None:
    within = effect.args.get("within_s")
    return None if within is None else effect.started_at + float(within)


def ask_at_request(run: Run, effect: Effect) -> Part:
    given = effect.input
    ask = NewAsk(
        ask_id=ask_id(run, effect.key), effect=effect.key, kind=given["kind"], question=given["question"],
        options=given.get("options"), schema=given.get("schema"), context=given.get("context"),
        approvers=tuple(effect.args.get("approvers") or ()), channel=effect.args.get("channel"), risk=effect.args.get("risk"),
        binding=given.get("binding"), opened_at=effect.started_at, expires_at=_expires(effect),
    )
    opened = {"ask": ask.ask_id, "kind": ask.kind, "question": ask.question, "binding": ask.binding}
    run.ports.faults.reach("ask.before")
    return Part(Batch(asks=(ask,)), (("ask.opened", effect.key, opened),))


async def perform_ask(run: Run, effect: Effect) -> Done:
    run.ports.faults.reach("ask.after")
    due = _expires(effect)
    effect.waiting = {"on": "asks", "ask": ask_id(run, effect.key), "due": due}
    run.note_idle()
    try:
        record = await run.inbox.answer(ask_id(run, effect.key), due)
    finally:
        effect.waiting = None
    if record is not None:
        return Done({
            "value": record.answer, "by": record.answered_by, "at": record.answered_at,
            "channel": record.answer_channel, "note": record.note,
        })
    if "default" in effect.args:
        return Done({"value": effect.args["default"], "by": "default", "at": run.now(), "channel": "default", "note": None})
    raise AskExpired(f"nobody answered within {effect.args['within_s']:g} s: {effect.input['question']}")


def ask_at_completion(run: Run, completion: Completion) -> Part:
    ask = ask_id(run, completion.effect.key)
    if completion.status != "ok":
        closed = "expired" if completion.status == "error" else "cancelled"
        return Part(Batch(asks_closed=((ask, closed),)))
    answer = completion.done.result
    if answer["channel"] == "default":
        return Part(Batch(asks_closed=((ask, "expired"),)))
    data = {"ask": ask, "value": answer["value"], "by": answer["by"], "channel": answer["channel"]}
    return Part(events=(("ask.answered", completion.effect.key, data),))


# ---- notices -----------------------------------------------------------------------------------


def checkpoint(run: Run, effect: Effect) -> Done:
    data = {"message": effect.input["message"], "data": effect.input.get("data")}
    return Done(parts=(Part(events=(("program.checkpoint", effect.key, data),)),))


def tell(run: Run, effect: Effect) -> Done:
    """A notice is an event with an id; whoever serves a channel delivers it from the log, at least once."""
    notice = {"id": digest([run.run_id, effect.key])[:16], "to": effect.input["to"], "severity": effect.input.get("severity", "info")}
    event = ("program.checkpoint", effect.key, {"message": effect.input["message"], "data": {"tell": notice}})
    return Done(notice, parts=(Part(events=(event,)),))


async def perform_artifact(run: Run, effect: Effect) -> Done:
    given = effect.input
    data = base64.b64decode(given["data"]["b64"]) if isinstance(given["data"], dict) else str(given["data"]).encode()
    run.ports.faults.reach("blob.before")
    uri = await run.ports.blobs.put(data)
    run.ports.faults.reach("blob.after")
    stored = {"name": given["name"], "uri": uri, "media_type": given["media_type"], "bytes": len(data)}
    return Done(stored, Usage(artifact_bytes=len(data)), parts=(Part(events=(("artifact.stored", effect.key, stored),)),))


# ---- the run's own inbox -----------------------------------------------------------------------


def _plain(item: InboxItem) -> dict[str, Any]:
    return {"id": f"inbox-{item.seq}", "body": item.body, "sender": item.sender, "at": item.created_at}


def messages(run: Run, effect: Effect) -> Done:
    items = run.inbox.messages()
    return Done([_plain(item) for item in items], parts=(Part(Batch(inbox_done=tuple(item.seq for item in items))),))


async def perform_receive(run: Run, effect: Effect) -> Done:
    if effect.input.get("schema") is None and not effect.input.get("wait", True):
        return messages(run, effect)
    within = effect.args.get("within_s")
    due = None if within is None else effect.started_at + float(within)
    effect.waiting = {"on": "message", "due": due}
    run.note_idle()
    try:
        item = await run.inbox.until(run.inbox.message, due)
    finally:
        effect.waiting = None
    if item is None:
        raise DeadlineExceeded(f"no message came within {within:g} s")
    return Done(_plain(item), parts=(Part(Batch(inbox_done=(item.seq,))),))


def check_answer(kind: str, options: Any, value: Any, schema: Any) -> Any:
    """The value that an answer stands for. Raises ``UsageError`` that says what is possible."""
    if kind == "approval":
        options = options or ["approve", "decline"]
    if kind in ("approval", "choice"):
        if value not in (options or []):
            raise UsageError(f"{value!r} is no answer to this question; possible are: {', '.join(map(str, options or []))}")
    elif kind == "text" and not isinstance(value, str):
        raise UsageError("this question wants text")
    elif kind == "model":
        return _fitting(value, schema)
    return value


def _fitting(value: Any, schema: Any) -> Any:
    """An answer to a typed question: JSON text or data that has the schema's required fields and no others."""
    try:
        data = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UsageError(f"this question wants a JSON object: {error}") from None
    fields = schema.get("properties", {}) if isinstance(schema, dict) else {}
    required = schema.get("required", []) if isinstance(schema, dict) else []
    if not isinstance(data, dict) or any(name not in data for name in required) or any(name not in fields for name in data):
        raise UsageError(f"this question wants a JSON object with the fields {', '.join(fields)}")
    return data
