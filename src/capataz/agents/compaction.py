"""Keeping a conversation inside the model's window: references for old tool results, then a summary, then the end."""

from __future__ import annotations

from capataz.agents.history import Chat, repaired, size, user
from capataz.agents.prompts import block

CHARS_PER_TOKEN = 3.0                          # on the safe side for code
NEAR = 0.85                                    # of the window
KEEP_TURNS = 2                                 # the last turns stay whole
_SHORT = 400                                   # characters of a result that is kept


def tokens(characters: int) -> int:
    return int(characters / CHARS_PER_TOKEN) + 1


def is_near(messages: list[Chat], tools_chars: int, max_output_tokens: int, window_tokens: int) -> bool:
    """Whether the next call comes near the window; never with an unknown (0) window."""
    return window_tokens > 0 and tokens(size(messages) + tools_chars) + max_output_tokens > window_tokens * NEAR


def _recent(messages: list[Chat], turns: int) -> int:
    """Index of the assistant message that begins the last ``turns`` turns."""
    starts = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    return starts[-turns] if len(starts) >= turns else len(messages)


def with_references(messages: list[Chat]) -> list[Chat]:
    """Old tool results replaced by references to the call that gave them."""
    border = min(_recent(messages, KEEP_TURNS), len(messages))
    return [_reference(m) if i < border and m["role"] == "tool" and len(m["content"]) > _SHORT else m for i, m in enumerate(messages)]


def _reference(message: Chat) -> Chat:
    text = message["content"]
    first = text.split("\n", 1)[0][:120]
    return {**message, "content": f"[result of {message['tool_name']} ({message['tool_call_id']}) left out to save space: {len(text)} characters, beginning {first!r}; call it again if needed]"}


def summarised(messages: list[Chat], summary: str) -> list[Chat]:
    """Rules and task, the summary, and the last turn."""
    head = [m for m in messages[:2] if m["role"] in ("system", "user")]
    border = max(_recent(messages, 1), len(head))
    tail = [_clipped(m) for m in messages[border:]]
    return repaired([*head, user("What happened so far, shortened:\n" + block("summary", summary)), *tail])


def _clipped(message: Chat) -> Chat:
    text = message.get("content") or ""
    if message["role"] != "tool" or len(text) <= 8_000:
        return message
    return {**message, "content": f"{text[:4_000]}\n[… {len(text) - 8_000} characters left out …]\n{text[-4_000:]}"}


def to_summarise(messages: list[Chat], window_tokens: int, max_output_tokens: int) -> list[Chat]:
    """What the summary is made of: everything, with references, cut to what the window takes (the newest kept)."""
    short = with_references(messages)[1:]
    if window_tokens == 0:
        return short[:1] + short[1:][-40:]
    room = int(max(window_tokens * 0.7 - max_output_tokens, window_tokens * 0.2) * CHARS_PER_TOKEN)
    kept: list[Chat] = []
    for message in reversed(short[1:]):
        room -= size([message])
        if room < 0:
            break
        kept.append(message)
    return [*short[:1], *reversed(kept)]
