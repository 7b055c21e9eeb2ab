"""Asking the person at the terminal. A line is read without blocking the event loop, so Ctrl-C works while a question stands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import termios
from collections.abc import AsyncIterator
from typing import Any

from capataz.cli.output import clean, console, is_terminal
from capataz.cli.report import approval_lines
from capataz.contracts.blobs import Blobs
from capataz.contracts.journal import AskRecord


def can_ask() -> bool:
    """There is a person at a terminal: both ends of the conversation are one."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


async def put_question(ask: AskRecord, blobs: Blobs, stop: asyncio.Event) -> Any:
    """Shows the question and waits for a fitting answer. None: the person left it open (end of input, Ctrl-C)."""
    _forget_typed()
    _show(ask)
    async for line in _lines(stop):
        word = line.strip()
        if ask.kind == "approval" and word in {"d", "diff"}:
            await _show_diff(ask, blobs)
        elif (value := parse(ask, word)) is not None:
            return value
        _prompt(ask)
    return None


def parse(ask: AskRecord, word: str) -> Any:
    """The value that ``word`` stands for, or None when it is no answer. An approval wants the whole word; other choices may be
    given by number or unique beginning."""
    if ask.kind == "text":
        return word or None
    if ask.kind == "model":
        try:
            return json.loads(word)
        except ValueError:
            return None
    options: list[Any] = ask.options if isinstance(ask.options, list) else []
    if ask.kind == "approval":
        return word if word in options else None
    if word.isdecimal() and 0 < int(word) <= len(options) and word not in options:
        return options[int(word) - 1]
    begun = [option for option in options if str(option) == word] or [
        option for option in options if word and str(option).startswith(word.lower())
    ]
    return begun[0] if len(begun) == 1 else None


def how_to_answer(ask: AskRecord) -> list[str]:
    """A command for each answer, each on a line of its own: pasted into a shell it does just what it says."""
    words = [str(option) for option in ask.options] if isinstance(ask.options, list) and ask.options else ["VALUE"]
    heads = ["  answer with:", *["           or:"] * (len(words) - 1)]
    return [f"{head} capataz answer {ask.ask_id} {clean(shlex.quote(word))}" for head, word in zip(heads, words, strict=True)]


def _forget_typed() -> None:
    """What was typed before the question stood there was no answer to it."""
    with contextlib.suppress(OSError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _show(ask: AskRecord) -> None:
    out = console(err=True)
    context = ask.context
    if ask.kind == "approval" and isinstance(context, dict) and "plan" in context:
        for line in approval_lines(context, ask.binding):
            out.print(line)
    elif context:
        out.print(clean(json.dumps(context, ensure_ascii=False, indent=2), lines=True))
    out.print()
    out.print(clean(ask.question))
    _prompt(ask)


def _prompt(ask: AskRecord) -> None:
    options: list[Any] = ask.options if isinstance(ask.options, list) else []
    hint = ", ".join(clean(option) for option in options) or ("JSON" if ask.kind == "model" else "text")
    if ask.kind == "approval":
        hint += "; d shows the diff"
    console(err=True).print(f"[{hint}] > ", end="")


async def _show_diff(ask: AskRecord, blobs: Blobs) -> None:
    diff: dict[str, Any] = ask.context.get("diff") or {} if isinstance(ask.context, dict) else {}
    if uri := diff.get("uri"):
        data = await blobs.get(uri)
        console(err=True).print(clean(data.decode("utf-8", "replace"), lines=True))


async def _lines(stop: asyncio.Event) -> AsyncIterator[str]:
    """Lines of the terminal until its end or ``stop``."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[bytes] = asyncio.Queue()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, lambda: ready.put_nowait(_read(descriptor)))
    buffer = b""
    try:
        while chunk := await _first(ready, stop):
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
    finally:
        loop.remove_reader(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


async def _first(ready: asyncio.Queue[bytes], stop: asyncio.Event) -> bytes:
    reading, stopping = asyncio.ensure_future(ready.get()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else b""
    finally:
        reading.cancel()
        stopping.cancel()
