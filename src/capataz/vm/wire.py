"""The pipe between a program process and the kernel: frames of JSON over one stream socket.

A frame is four bytes of length (big endian) and one JSON object with a ``t``. The program process is deterministic: given
the same ``start`` and the same ``deliver`` frames it sends the same ``batch`` frames.

Kernel to program:

* ``start``   ``{"ref", "files": {path: text} | None, "input", "seed", "now", "scope", "path"}``: run this program. ``ref`` is
  ``module:name``, or what the person wrote: then the closure's own entry is meant. ``files`` is the pinned source closure
  (``closure.Source.files``: ``pkg/mod.py`` to text, and ``"@entry"`` to ``module:name``), imported before anything on disk;
  ``scope`` the prefix of all its requests' scopes; ``path`` further folders to import from.
* ``describe`` ``{"ref", "files"}``: in place of ``start``; answered by ``described`` (``{"ok": {"name", "ref", "doc", "input",
  "output"}} | {"error"}``).
* ``deliver`` ``{"items": [{"no", "ok": value} | {"no", "error": {...}}, ...]}``, each item with ``"now"``, the recorded time of the
  completion: the loop takes the items one by one and runs until idle after each.
* ``call``    ``{"id", "callback", "args"}``: run a callback that a request registered (accept, context); pure, not journaled by
  the program; answered by ``called``. ``args``: the list of its arguments (``accept``: [value], ``context``: [messages]), or
  the one argument when it is no list. ``accept`` answers null (fine) or the text of a refusal.
* ``fork``    ``{"no", "env"}``: run the step function of request ``no`` in a forked child, where the audit hook is off and the
  environment is ``env``; answered by ``forked``.
* ``kill``    ``{"no"}``: kill the child of that step with all its descendants; its ``forked`` follows.
* ``stop``    ``{}``: end the process.

Program to kernel:

* ``batch``   ``{"requests": [request...], "cancels": [[no, reason, after]...], "seen": n}``: what was asked since the last one, in order;
  ``seen`` counts the delivered items so far. Sent after ``start`` and after each ``deliver`` frame, also when empty. Each request
  and cancel carries ``"after"``: how many items had been delivered when it was made. What is delivered for a cancelled request
  is counted and otherwise ignored.
* ``done``    like ``batch`` plus ``"result"``: the program returned.
* ``failed``  like ``batch`` plus ``"error"`` (``CapatazError.to_json``): the program raised.
* ``called``  ``{"id", "ok"} | {"id", "error"}``.
* ``forked``  ``{"no", "ok"} | {"no", "error"}``.

A request: ``{"no", "n", "lane", "after", "kind", "scope", "name", "input", "args", "site"}``. ``no`` counts from 0 in the process
and is its name on the wire. ``n`` is its number in the journal: it counts from 0 in the program's own lane, and in each epoch of a
loop, whose lane is named by the number of the loop's request (``lane``; left out for the program's own); ``input`` is
what identifies the effect; ``args`` are limits and callbacks, which do not; ``site`` is
``file:line`` of the call, for messages.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

from pydantic_core import from_json, to_json

from capataz.contracts.canonical import JsonValue

_HEAD = struct.Struct(">I")
MAX_FRAME = 1 << 30

KINDS = (
    # kind: input | args
    "agent",       # {prompt, data, type, model, output_schema, tools, workspace, reads, writes, harness} | {max_turns, budget, within_s, on_exhausted, accept, context, states, text}
    "child",       # {program, input} | {budget, within_s}
    "step",        # {fn, args, kwargs} | {idempotent, timeout_s}
    "ask",         # {question, kind, options, schema, context, binding} | {approvers, channel, risk, within_s, default}
    "tell",        # {to, message, severity}
    "artifact",    # {name, data, media_type}
    "checkpoint",  # {message, data}
    "sleep",       # {seconds}: sleep, and asyncio's timers
    "now",         # {}
    "control",     # {target: no, op: notify|pause|resume|status, text}: Handle methods
    "receive",     # {schema, within_s}: the run's inbox; messages() has no schema and does not wait
    "state",       # {op: read, reach} | {op: write, reach, version, value, model_version} | {op: wait, reach, after}
    "loop",        # {carry}: opens a lane
    "epoch",       # {} | {carry, due}: the first request of a lane (n = 0) begins with the epoch that the journal is at, a later one
                   # ends it and begins the next; the result is {epoch, carry, due}
    "budget",      # {usd, tokens, turns, agents, tool_calls, wall_s, sandbox_s}: limits of the scope's account
)
"""Kinds of requests besides ``coding.VERB`` (input: the verb's keyword arguments)."""


def pack(message: JsonValue) -> bytes:
    try:
        body = to_json(message)  # several times faster than the standard library, which takes what this refuses: lone surrogates
    except ValueError:
        body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _HEAD.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return json.loads(body.decode("utf-8", "surrogatepass"))


def frame_length(head: bytes) -> int:
    (length,) = _HEAD.unpack(head)
    if length > MAX_FRAME:
        raise ValueError("frame too long")
    return length


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next message; raises ``asyncio.IncompleteReadError`` at the end of the stream."""
    return unpack(await reader.readexactly(frame_length(await reader.readexactly(_HEAD.size))))
