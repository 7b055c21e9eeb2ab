"""People and messages: durable questions, notices, the run's own inbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from pydantic import ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import OutputInvalid, UsageError
from capataz.vm.limits import Duration, duration
from capataz.vm.results import Answer, Message, moment
from capataz.vm.runtime import current
from capataz.vm.sites import call_site
from capataz.vm.values import plain, problem, schema, type_name, typed

T = TypeVar("T")
Severity = Literal["info", "page"]

_ABSENT: Any = object()


@overload
async def ask(
    question: str,
    *,
    kind: Literal["approval", "choice", "text"] = "approval",
    options: Sequence[str] | None = None,
    context: Mapping[str, Any] | Any = None,
    binding: str | None = None,
    approvers: Sequence[str] = (),
    channel: str | None = None,
    risk: str | None = None,
    within: Duration | None = None,
    default: str = ...,
) -> Answer[str]: ...
@overload
async def ask(
    question: str,
    *,
    kind: type[T],
    context: Mapping[str, Any] | Any = None,
    binding: str | None = None,
    approvers: Sequence[str] = (),
    channel: str | None = None,
    risk: str | None = None,
    within: Duration | None = None,
    default: T = ...,
) -> Answer[T]: ...
async def ask(
    question: str,
    *,
    kind: Any = "approval",
    options: Sequence[str] | None = None,
    context: Any = None,
    binding: str | None = None,
    approvers: Sequence[str] = (),
    channel: str | None = None,
    risk: str | None = None,
    within: Duration | None = None,
    default: Any = _ABSENT,
) -> Answer[Any]:
    """A question to a person; the run parks until it is answered, for months if need be.

    ``kind``: ``"approval"`` (the answer is ``approve`` or ``decline``), ``"choice"`` of ``options``, ``"text"``, or a model
    whose fields are asked for. ``binding`` is a digest that the decision is for. After ``within`` the answer is ``default``;
    without one ``AskExpired`` is raised.
    """
    site = call_site(2)
    name, type_ = _kind(kind, options, site)
    args: dict[str, Any] = {"approvers": list(approvers), "channel": channel, "risk": risk, "within_s": duration(within)}
    if default is not _ABSENT:
        args["default"] = plain(default)
    input = {
        "question": question,
        "kind": name,
        "options": ["approve", "decline"] if name == "approval" and not options else plain(options),
        "schema": schema(type_) if name == "model" else None,
        "context": plain(context),
        "binding": binding,
    }
    given = await current().request("ask", input=input, args=args, site=site)
    return _answer(given, type_ if name == "model" else None, site)


def _kind(kind: Any, options: Sequence[str] | None, site: str) -> tuple[str, Any]:
    if not isinstance(kind, str):
        return "model", kind
    if kind not in ("approval", "choice", "text"):
        raise UsageError(f"{site}: ask(kind={kind!r}): write approval, choice, text or a model")
    if kind == "choice" and not options:
        raise UsageError(f"{site}: ask(kind='choice') needs options=[...]")
    return kind, None


def _answer(given: JsonValue, type_: Any, site: str) -> Answer[Any]:
    value = given["value"]
    if type_ is not None:
        try:
            value = typed(type_, value)
        except ValidationError as error:
            raise OutputInvalid(f"{site}: the answer is no valid {type_name(type_)}: {problem(error)}") from error
    return Answer(
        value=value,
        by=given.get("by") or "",
        at=moment(given.get("at")),
        channel=given.get("channel") or "",
        note=given.get("note"),
    )


async def tell(to: str, message: str, *, severity: Severity = "info") -> None:
    """A one-way notice to a person or a channel, delivered at least once with an id."""
    if severity not in ("info", "page"):
        raise UsageError(f"tell(severity={severity!r}): write info or page")
    await current().request("tell", input={"to": to, "message": message, "severity": severity}, site=call_site(2))


async def messages() -> list[Message[Any]]:
    """What arrived in the run's inbox and was not taken yet, in order; never waits."""
    given = await current().request("messages", site=call_site(2))
    return [_message(item, item.get("body")) for item in given or []]


@overload
async def receive(model: type[T], *, within: Duration | None = None) -> T: ...
@overload
async def receive(model: None = None, *, within: Duration | None = None) -> Any: ...
async def receive(model: Any = None, *, within: Duration | None = None) -> Any:
    """Waits for the next message and gives its body as ``model`` (without one: as JSON); parks the run meanwhile.

    Raises ``DeadlineExceeded`` after ``within``, ``OutputInvalid`` for a body that is no ``model``: the message is taken then.
    """
    site = call_site(2)
    input = {"schema": None if model is None else schema(model), "wait": True}
    given = await current().request("receive", input=input, args={"within_s": duration(within)}, site=site)
    body = given["body"]
    if model is None:
        return body
    try:
        return typed(model, body)
    except ValidationError as error:
        raise OutputInvalid(f"{site}: a message from {given.get('sender')} is no valid {type_name(model)}: {problem(error)}") from error


def _message(item: dict[str, Any], body: Any) -> Message[Any]:
    return Message(body=body, sender=item.get("sender") or "", at=moment(item.get("at")), id=str(item.get("id") or ""))
