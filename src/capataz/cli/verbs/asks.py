"""asks, answer: the person's part."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capataz.cli import bridge, options
from capataz.cli.app_port import App
from capataz.cli.foreground import carry_on, tell
from capataz.cli.output import clean, emit_json, emit_line, stderr_line
from capataz.cli.person import how_to_answer, parse
from capataz.cli.report import approval_lines
from capataz.cli.verbs.common import Json, examples, find_run, iso
from capataz.contracts.errors import AlreadyAnswered, NotFound, UsageError
from capataz.contracts.journal import AskRecord


def add(app: typer.Typer) -> None:
    app.command(epilog=examples("capataz asks", "capataz asks --run RUN --all --json"))(asks)
    app.command(epilog=examples("capataz answer ASK approve", 'capataz answer ASK decline --note "not before the release"'))(answer)


def asks(
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only of this run.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Answered and closed ones too.")] = False,
    json: Json = False,
) -> int:
    """List questions that wait for a person, with all that is needed to decide."""

    async def work(app: App) -> list[AskRecord]:
        run_id = (await find_run(app.journal, run)).run_id if run else None
        return await app.journal.asks(run_id=run_id, open_only=not all)

    found = bridge.with_app(work)
    if json:
        emit_json({"asks": [ask_json(ask) for ask in found]})
        return 0
    for ask in found:
        _show(ask)
    if not found:
        emit_line("nothing waits for an answer")
    return 0


def ask_json(ask: AskRecord) -> dict[str, Any]:
    """One question for programs."""
    return {
        "ask_id": ask.ask_id,
        "run_id": ask.run_id,
        "kind": ask.kind,
        "question": ask.question,
        "options": ask.options,
        "schema": ask.schema,
        "context": ask.context,
        "approvers": list(ask.approvers),
        "risk": ask.risk,
        "binding": ask.binding,
        "opened": iso(ask.opened_at),
        "expires": iso(ask.expires_at),
        "answer": ask.answer,
        "answered_by": ask.answered_by,
        "answered": iso(ask.answered_at),
        "channel": ask.answer_channel,
        "note": ask.note,
        "closed": ask.closed,
    }


def _show(ask: AskRecord) -> None:
    emit_line(f"{ask.ask_id}  run {ask.run_id}  {clean(ask.question)}")
    if ask.kind == "approval" and isinstance(ask.context, dict) and "plan" in ask.context:
        for line in approval_lines(ask.context, ask.binding):
            emit_line(f"  {line}")
    if ask.answer is not None:
        emit_line(f"  answered: {clean(ask.answer)} by {clean(ask.answered_by)}")
    elif ask.closed:
        emit_line(f"  closed: {clean(ask.closed)}")
    else:
        for line in how_to_answer(ask):
            emit_line(line)


def answer(
    ask: Annotated[str, typer.Argument(metavar="ASK", help="The question's id (capataz asks lists them).")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="An option, a text, or JSON for a typed question.")],
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Kept with the decision.")] = None,
    json: Json = False,
) -> int:
    """Answer a question, once; without a live worker the run is then carried on here."""

    async def work(app: App) -> int:
        question = await _find(app, ask)
        decision = _value(question, value)
        await app.answer(question.ask_id, decision, by=options.user(), channel="cli", note=note)
        if not await app.held(question.run_id):
            await app.prepare_resume(question.run_id, with_file=None)
            return await carry_on(app, question.run_id, as_json=json)
        stderr_line(f"stored; the worker that holds run {question.run_id} carries it on")
        await tell(app, await app.journal.get_run(question.run_id), as_json=json)
        return 0

    return bridge.with_app(work)


async def _find(app: App, ask_id: str) -> AskRecord:
    try:
        question = await app.journal.get_ask(ask_id)
    except NotFound:
        raise NotFound(f"there is no question {ask_id!r}; `capataz asks` lists the open ones") from None
    if question.answer is not None:
        raise AlreadyAnswered(f"question {ask_id} was answered by {question.answered_by}; its decision stands")
    if question.closed:
        raise AlreadyAnswered(f"question {ask_id} is closed: {question.closed}")
    return question


def _value(question: AskRecord, word: str) -> Any:
    """A prefix is fine at a prompt, where it is seen; here the word must be an option in full."""
    options_: list[Any] = question.options if isinstance(question.options, list) else []
    named = next((option for option in options_ if str(option) == word), None)
    if question.kind in {"text", "model"} or not options_:
        named = parse(question, options.text(word, "VALUE"))
    if named is None:
        fits = ", ".join(str(option) for option in options_) or ("JSON" if question.kind == "model" else "a text")
        raise UsageError(f"{word!r} is no answer to this question; give {fits}")
    return named
